//! Whether two files have the same content, however their maps cut it into pages.

use std::collections::HashMap;

use onefold_core::{Fingerprint, Result};

use super::reader::{TreeReader, too_much};
use crate::{
    format::{
        bytes::corrupt,
        recipe::Part,
        tree_node::{FileMap, TreeNodeRef, content_bytes},
    },
    operations_log::Domain,
};

/// Pages of which a comparison remembers that they are one stretch of zeroes, or one hole.
const ALIKE_MAX: usize = 10_000;

/// Pages that a map may have in any case.
const PAGES_FREE: u64 = 100_000;

/// Bytes of content that each further page has in the mean. The smallest part of a file that `backup`
/// stores has 512, but for its last one.
const PAGE_BYTES: u64 = 256;

/// Stretches of zeroes, and holes, in a content's fingerprint.
const ZEROES: u8 = 1;
const HOLE: u8 = 2;

/// Zeroes or a hole, and how many bytes.
type Stretch = (u8, u64);

/// Pages, also index pages, that are one stretch each.
type Alike = HashMap<TreeNodeRef, Stretch>;

/// True when two files of `bytes` bytes have the same content. Pages that both have at the same place of
/// the file, or that are one stretch of zeroes or one hole and came before, are not read.
///
/// # Errors
/// As [`TreeReader::node`]; `Corrupt` where a map has more content than the file, or pages so small that
/// nobody could read them all.
pub(super) fn same_content(
    reader: &mut TreeReader,
    bytes: u64,
    [one, other]: [&FileMap; 2],
) -> Result<bool> {
    let (mut one, mut other) = (Walk::new(reader, bytes, one)?, Walk::new(reader, bytes, other)?);
    let mut alike = Alike::new();
    loop {
        if one.at == other.at {
            if one.so_far != other.so_far {
                return Ok(false);
            }
            match (one.ahead(&mut alike), other.ahead(&mut alike)) {
                (None, None) => return Ok(true),
                (Some((level, node)), Some((of_other, in_other)))
                    if level == of_other && node.fingerprint == in_other.fingerprint =>
                {
                    one.pass();
                    other.pass();
                    continue;
                }
                _ => {}
            }
        }
        let levels = [one.ahead(&mut alike), other.ahead(&mut alike)].map(|next| next.map(|n| n.0));
        let first_goes = match levels {
            [None, None] => return Ok(false),
            [None, _] if one.at < other.at => return Ok(false),
            [_, None] if other.at < one.at => return Ok(false),
            [Some(_), None] => true,
            [None, Some(_)] => false,
            _ if one.at != other.at => one.at < other.at,
            [level, of_other] => level >= of_other,
        };
        let walk = if first_goes { &mut one } else { &mut other };
        walk.go_on(reader, &mut alike)?;
    }
}

/// The pages below an index page, or the topmost one.
struct Level {
    of: Option<TreeNodeRef>,
    level: u8,
    pages: Vec<TreeNodeRef>,
    given: usize,
    alike: Sum,
}

/// What pages have together.
#[derive(Clone, Copy)]
enum Sum {
    Nothing,
    One(Stretch),
    Several,
}

impl Sum {
    fn add(&mut self, more: Option<Stretch>) {
        *self = match (*self, more) {
            (Sum::Nothing, Some(stretch)) => Sum::One(stretch),
            (Sum::One((kind, bytes)), Some((same, more))) if kind == same => {
                Sum::One((kind, bytes.saturating_add(more)))
            }
            _ => Sum::Several,
        };
    }

    fn of(parts: &[Part]) -> Sum {
        let mut sum = Sum::Nothing;
        parts.iter().for_each(|part| sum.add(stretch(part)));
        sum
    }

    fn stretch(self) -> Option<Stretch> {
        match self {
            Sum::One(stretch) => Some(stretch),
            _ => None,
        }
    }
}

fn stretch(part: &Part) -> Option<Stretch> {
    match part {
        Part::Zeroes(bytes) => Some((ZEROES, *bytes)),
        Part::Hole(bytes) => Some((HOLE, *bytes)),
        _ => None,
    }
}

/// A walk through a file's map.
struct Walk {
    levels: Vec<Level>,
    /// Bytes before what comes next, without those that both have.
    at: u64,
    bytes: u64,
    pages: u64,
    so_far: SoFar,
}

/// The content before a place, wherever its chunks lie: a fingerprint, and the stretch behind it, which
/// may go on.
#[derive(Default, PartialEq)]
struct SoFar {
    id: Fingerprint,
    open: Stretch,
}

impl SoFar {
    fn add(&mut self, domain: &Domain, part: &Part) {
        let fingerprinter = &domain.fingerprinter;
        let next = |id: Fingerprint, kind: u8, bytes: &[u8]| {
            fingerprinter.bytes(&[&id.0[..], &[kind], bytes].concat())
        };
        let (kind, more) = stretch(part).unwrap_or_default();
        if kind != self.open.0 && self.open.1 > 0 {
            self.id = next(self.id, self.open.0, &self.open.1.to_le_bytes());
            self.open.1 = 0;
        }
        // A hostile file may have any number of them.
        self.open = (kind, self.open.1.saturating_add(more));
        if let Part::Run { fingerprints, .. } = part {
            for fingerprint in fingerprints {
                self.id = next(self.id, 0, &fingerprint.0);
            }
        }
    }
}

impl Walk {
    fn new(reader: &TreeReader, bytes: u64, map: &FileMap) -> Result<Walk> {
        let mut walk =
            Walk { levels: Vec::new(), at: 0, bytes, pages: 0, so_far: SoFar::default() };
        match map {
            FileMap::Inline(parts) => walk.take(reader, parts)?,
            FileMap::Pages(top) => walk.levels.push(Level {
                of: None,
                level: top.levels,
                pages: vec![top.node],
                given: 0,
                alike: Sum::Nothing,
            }),
        }
        Ok(walk)
    }

    /// The level and the place of the page that comes next; what ends here is remembered.
    fn ahead(&mut self, alike: &mut Alike) -> Option<(u8, TreeNodeRef)> {
        while let Some(last) = self.levels.last() {
            if let Some(&node) = last.pages.get(last.given) {
                return Some((last.level, node));
            }
            let (of, stretch) = (last.of, last.alike.stretch());
            self.levels.pop();
            if let (Some(of), Some(stretch)) = (of, stretch) {
                remember(alike, of, stretch);
            }
            if let Some(above) = self.levels.last_mut() {
                above.alike.add(stretch);
            }
        }
        None
    }

    /// Goes past the page that comes next, which nobody looked at.
    fn pass(&mut self) {
        if let Some(last) = self.levels.last_mut() {
            last.given += 1;
            last.alike = Sum::Several;
        }
    }

    /// Takes the page that comes next, or goes to what is below it.
    fn go_on(&mut self, reader: &mut TreeReader, alike: &mut Alike) -> Result<()> {
        let Some((level, node)) = self.ahead(alike) else { return Ok(()) };
        let Some(last) = self.levels.last_mut() else { return Ok(()) };
        last.given += 1;
        if let Some(&stretch) = alike.get(&node) {
            last.alike.add(Some(stretch));
            let part = match stretch {
                (ZEROES, bytes) => Part::Zeroes(bytes),
                (_, bytes) => Part::Hole(bytes),
            };
            return self.take(reader, &[part]);
        }
        self.pages += 1;
        if self.pages > PAGES_FREE + self.at / PAGE_BYTES {
            return Err(corrupt("the map of a file has more pages than its content can fill"));
        }
        if level > 0 {
            let pages = reader.below(level, &node)?;
            let (of, level) = (Some(node), level - 1);
            self.levels.push(Level { of, level, pages, given: 0, alike: Sum::Nothing });
            return Ok(());
        }
        let parts = reader.file_map(&node)?;
        let sum = Sum::of(&parts).stretch();
        last.alike.add(sum);
        if let Some(stretch) = sum {
            remember(alike, node, stretch);
        }
        self.take(reader, &parts)
    }

    fn take(&mut self, reader: &TreeReader, parts: &[Part]) -> Result<()> {
        let at = self.at.checked_add(content_bytes(parts)).filter(|&at| at <= self.bytes);
        self.at = at.ok_or_else(too_much)?;
        let domain = reader.domain()?;
        parts.iter().for_each(|part| self.so_far.add(&domain, part));
        Ok(())
    }
}

fn remember(alike: &mut Alike, node: TreeNodeRef, stretch: Stretch) {
    if alike.len() < ALIKE_MAX {
        alike.insert(node, stretch);
    }
}
