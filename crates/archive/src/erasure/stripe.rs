//! A segment file on several nodes.
//!
//! Its bytes are rows of `k` units of 4 KiB, one for each column of data, and the code gives each
//! row units of parity; column `c` of all rows is a file on one node, named in the header of each.
//! A container begins a row, so that its columns are `k` shards and `n - k` of parity that no other
//! container shares; rows are written once. On a node a unit is followed by its checksum, which is
//! seeded with where it belongs: rot, a lost row and a misplaced one are all a lost unit, and what
//! is read is made from `k` others.
//!
//! Shards are cut by units and not at the ends of groups: all are of one length, and parity is no
//! longer than it must be.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, File, Files, Kind, PendingSync, Result, checksum};
use parking_lot::Mutex;

use super::{
    code::{Code, combine},
    label::Absent,
    shared::{Shared, bits, read_label},
};
use crate::{
    format::{
        bytes::{Reader, Writer, corrupt},
        class::COLUMNS_MAX,
        names::fresh,
    },
    rules::Rule,
};

/// Bytes of a unit.
pub(crate) const UNIT_BYTES: usize = 4096;

/// The same with its checksum.
const STORED_BYTES: usize = UNIT_BYTES + 8;

/// Bytes before the first unit of a column.
const HEADER_BYTES: usize = 4096;

/// Rows that are read, or recovered, together.
const ROWS_AT_ONCE: u64 = 256;

const MAGIC: &[u8; 8] = b"ONEFCOLM";

/// The node of each column of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) segment: u32,
    /// Columns of data; the rest is parity, as much as all segments have.
    pub(super) data: u8,
    pub(super) nodes: Vec<u8>,
}

impl Layout {
    fn encode(&self, shared: &Shared, column: usize) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(MAGIC)
            .raw(&shared.identity.id)
            .u32(self.segment)
            .u8(column as u8)
            .u8(self.data)
            .u16(self.nodes.len() as u16);
        w.raw(&self.nodes);
        w.0.resize(HEADER_BYTES - 8, 0);
        let checksum = shared.identity.checksum(&w.0);
        w.u64(checksum);
        w.0
    }

    fn decode(
        shared: &Shared,
        segment: u32,
        column: Option<usize>,
        bytes: &[u8],
    ) -> Result<Layout> {
        let damaged = || corrupt(format!("a column of segment {segment} has no header"));
        let body = bytes.get(..HEADER_BYTES - 8).ok_or_else(damaged)?;
        if bytes[HEADER_BYTES - 8..] != shared.identity.checksum(body).to_le_bytes() {
            return Err(damaged());
        }
        let mut r = Reader(body, None);
        let (magic, archive, number, own, data, n) =
            (r.take(8)?, r.take(16)?, r.u32()?, r.u8()?, r.u8()?, usize::from(r.u16()?));
        let known =
            magic == MAGIC && archive == shared.identity.id && number == segment && data > 0;
        if !known
            || n != usize::from(data) + shared.code.parity()
            || n > COLUMNS_MAX
            || column.is_some_and(|column| column != usize::from(own))
        {
            return Err(damaged());
        }
        let nodes = r.take(n)?.to_vec();
        let there = |node: &u8| usize::from(*node) < shared.directories.len();
        if nodes.iter().all(there) { Ok(Layout { segment, data, nodes }) } else { Err(damaged()) }
    }

    /// The column on a node.
    pub(crate) fn column_of(&self, node: usize) -> Option<usize> {
        self.nodes.iter().position(|&n| usize::from(n) == node)
    }
}

fn number_of(name: &str) -> Result<u32> {
    let digits = name.strip_prefix("segment-").and_then(|digits| digits.parse().ok());
    digits.ok_or_else(|| corrupt(format!("{name} is no segment")))
}

fn header(file: &dyn File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    let n = file.read_at(0, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Where the columns of a segment are: by the first header that a node of this host has, otherwise by that of more
/// nodes than may lie, or of most of them.
pub(super) fn layout(shared: &Shared, name: &str) -> Result<Layout> {
    let segment = number_of(name)?;
    let mut last = Error::new(Kind::NotFound, format!("{name} is not there"));
    let mut shown: Vec<(Layout, usize)> = Vec::new();
    let here = shared.here();
    for n in bits(here & !shared.far).chain(bits(here & shared.far)) {
        let found = shared
            .directory(n)?
            .open(name)
            .and_then(|file| header(&*file))
            .and_then(|bytes| Layout::decode(shared, segment, None, &bytes));
        match found {
            Ok(layout) if !shared.is_far(n) => return Ok(layout),
            // A node that has a column is among the nodes of its header.
            Ok(layout) if layout.column_of(n).is_none() => {}
            Ok(layout) => {
                let at =
                    shown.iter().position(|(other, _)| *other == layout).unwrap_or(shown.len());
                if at == shown.len() {
                    shown.push((layout, 0));
                }
                shown[at].1 += 1;
                if shown[at].1 > shared.code.parity() {
                    return Ok(shown.swap_remove(at).0);
                }
            }
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => {}
            Err(error) => last = error,
        }
    }
    shown.into_iter().rev().max_by_key(|(_, count)| *count).map(|(layout, _)| layout).ok_or(last)
}

/// True when all nodes of the segment are there and have a column of it. A segment that a crash
/// left half made is not used, and neither is its number, so that a segment has one layout for
/// ever.
pub(super) fn is_whole(shared: &Shared, name: &str) -> Result<bool> {
    let here = shared.here();
    if !shared.settings.keeps(Rule::EveryNodeHasItsShard) {
        return Ok(layout(shared, name).is_ok());
    }
    match layout(shared, name) {
        Ok(layout) => Ok(layout.nodes.iter().enumerate().all(|(column, &n)| {
            let found =
                || shared.directory(usize::from(n))?.open(name).and_then(|file| header(&*file));
            here >> n & 1 == 1
                && found()
                    .and_then(|bytes| Layout::decode(shared, layout.segment, Some(column), &bytes))
                    .is_ok_and(|found| found == layout)
        })),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Errors unless a new segment finds nodes.
fn can_place(shared: &Shared, code: &Code) -> Result<()> {
    let (here, n, k) = (shared.here().count_ones() as usize, code.columns(), code.data());
    if here >= n || (shared.degraded && here > k) {
        return Ok(());
    }
    let degraded = match here > k {
        true => ", or put with --degraded".to_owned(),
        false => format!("; even --degraded needs {} of them", k + 1),
    };
    let why = format!(
        "{here} of the {n} nodes of a stripe are there; replace the others with `onefold node replace`{degraded}"
    );
    Err(Error::new(Kind::Stopped, why))
}

/// Makes the columns of a new segment, `data` of them for data: on the nodes that are there, a node
/// farther for each segment.
pub(super) fn create(shared: &Arc<Shared>, name: &str, data: u8) -> Result<Arc<dyn File>> {
    let code = Code::new(usize::from(data) + shared.code.parity(), usize::from(data))?;
    can_place(shared, &code)?;
    let (here, n, segment) = (shared.here(), code.columns(), number_of(name)?);
    let count = shared.directories.len();
    let turned = (0..count).map(|node| (segment as usize + node) % count);
    let (there, gone): (Vec<usize>, Vec<usize>) = turned.partition(|node| here >> node & 1 == 1);
    let nodes: Vec<u8> = there.into_iter().chain(gone).take(n).map(|node| node as u8).collect();
    let segment = Segment::new(shared, name, Layout { segment, data, nodes })?;
    segment.on_all(|segment, column| segment.column(column, true).map(|_| ()))?;
    Ok(Arc::new(segment))
}

/// Opens the columns of a segment.
pub(super) fn open(shared: &Arc<Shared>, name: &str) -> Result<Arc<dyn File>> {
    Ok(Arc::new(Segment::of(shared, name)?))
}

pub(crate) struct Segment {
    shared: Arc<Shared>,
    name: String,
    code: Code,
    layout: Layout,
    files: Mutex<BTreeMap<usize, Arc<dyn File>>>,
}

impl Segment {
    pub(crate) fn of(shared: &Arc<Shared>, name: &str) -> Result<Segment> {
        Segment::new(shared, name, layout(shared, name)?)
    }

    fn new(shared: &Arc<Shared>, name: &str, layout: Layout) -> Result<Segment> {
        let code = Code::new(layout.nodes.len(), usize::from(layout.data))?;
        Ok(Segment {
            shared: shared.clone(),
            name: name.to_owned(),
            code,
            layout,
            files: Mutex::default(),
        })
    }

    fn code(&self) -> &Code {
        &self.code
    }

    fn node(&self, column: usize) -> usize {
        usize::from(self.layout.nodes[column])
    }

    /// The file of a column; with `make` it is made when it is not there, or is no column of this
    /// segment.
    fn column(&self, column: usize, make: bool) -> Result<Arc<dyn File>> {
        if let Some(file) = self.files.lock().get(&column) {
            return Ok(file.clone());
        }
        let directory = self.shared.directory(self.node(column))?;
        let found = directory.open(&self.name);
        let file = match found {
            Err(error) if error.kind() == Kind::NotFound && make => directory.create(&self.name)?,
            opened => opened?,
        };
        if make
            && header(&*file)
                .and_then(|bytes| {
                    Layout::decode(&self.shared, self.layout.segment, Some(column), &bytes)
                })
                .ok()
                .as_ref()
                != Some(&self.layout)
        {
            file.write_at(0, &self.layout.encode(&self.shared, column))?;
        }
        self.files.lock().insert(column, file.clone());
        Ok(file)
    }

    /// Does something on all columns. Without `--degraded` the first failure is one; with it `k +
    /// 1` columns are enough.
    fn on_all(&self, does: impl Fn(&Segment, usize) -> Result<()>) -> Result<()> {
        let (mut done, mut last) = (0, None);
        let is_careless = !self.shared.settings.keeps(Rule::EveryNodeHasItsShard);
        for column in 0..self.code().columns() {
            let node = self.node(column);
            let here = self.shared.here() >> node & 1 == 1;
            match if here {
                does(self, column)
            } else {
                Err(Error::new(Kind::NotFound, format!("node {node} is absent")))
            } {
                Ok(()) => done += 1,
                Err(error) if error.kind() != Kind::NoSpace && is_careless => done += 1,
                Err(error) => {
                    let error = self.shared.failed(node, error)?;
                    last = Some(error.context(format!("node {node}")));
                }
            }
        }
        match last {
            Some(error) if !self.shared.degraded || done <= self.code().data() => Err(error),
            _ => Ok(()),
        }
    }

    /// Bytes of a row's data.
    fn row_bytes(&self) -> u64 {
        (self.code().data() * UNIT_BYTES) as u64
    }

    fn place(row: u64) -> u64 {
        HEADER_BYTES as u64 + row * STORED_BYTES as u64
    }

    /// The checksum of a unit, which is another one at each place.
    fn seal(&self, column: usize, row: u64, unit: &[u8]) -> u64 {
        let place = (u64::from(self.layout.segment) << 40 | (column as u64) << 32 | row)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        checksum::fast(self.shared.identity.key ^ place, unit)
    }

    /// The stored bytes of all columns for data that begins a row.
    fn encode(&self, first: u64, parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let (k, code) = (self.code().data(), self.code());
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let rows = total.div_ceil(k * UNIT_BYTES);
        let mut out: Vec<Vec<u8>> =
            (0..code.columns()).map(|_| Vec::with_capacity(rows * STORED_BYTES)).collect();
        let (mut data, mut parity) = (vec![0; k * UNIT_BYTES], vec![Vec::new(); code.parity()]);
        let mut rest = parts.iter().copied();
        let mut part: &[u8] = rest.next().unwrap_or_default();
        for row in 0..rows as u64 {
            let mut filled = 0;
            while filled < data.len() {
                if part.is_empty() {
                    match rest.next() {
                        Some(next) => part = next,
                        None => {
                            data[filled..].fill(0);
                            break;
                        }
                    }
                    continue;
                }
                let n = part.len().min(data.len() - filled);
                data[filled..filled + n].copy_from_slice(&part[..n]);
                (part, filled) = (&part[n..], filled + n);
            }
            let units: Vec<&[u8]> = data.chunks(UNIT_BYTES).collect();
            code.encode(&units, &mut parity);
            for (column, unit) in
                units.into_iter().chain(parity.iter().map(Vec::as_slice)).enumerate()
            {
                out[column].extend_from_slice(unit);
                out[column].extend_from_slice(&self.seal(column, first + row, unit).to_le_bytes());
            }
        }
        out
    }

    /// Reads units of a column as stored; tells which are whole.
    fn units(&self, column: usize, first: u64, rows: usize, into: &mut Vec<u8>) -> Vec<bool> {
        into.clear();
        into.resize(rows * STORED_BYTES, 0);
        let here = self.shared.here() >> self.node(column) & 1 == 1;
        let read = if here {
            self.column(column, false).and_then(|file| file.read_at(Self::place(first), into))
        } else {
            Ok(0)
        };
        let n = read.unwrap_or(0);
        let whole = |(at, stored): (usize, &[u8])| {
            let (unit, sum) = stored.split_at(UNIT_BYTES);
            let is_sealed = || sum == self.seal(column, first + at as u64, unit).to_le_bytes();
            let compares = self.shared.settings.keeps(Rule::ShardChecksumsCompared);
            (at + 1) * STORED_BYTES <= n && (!compares || is_sealed())
        };
        into.chunks(STORED_BYTES).enumerate().map(whole).collect()
    }

    /// The units `wanted` of some rows, from wherever they come: `out` gets them row by row for
    /// each of the columns. Tells which units were bad, and those that can't be made from
    /// others.
    fn rows(&self, first: u64, rows: usize, wanted: &[usize], out: &mut [Vec<u8>]) -> Found {
        let n = self.code().columns();
        let (mut stored, mut whole): (Vec<Vec<u8>>, Vec<Vec<bool>>) =
            (vec![Vec::new(); n], vec![vec![false; rows]; n]);
        let (asked, others): (Vec<usize>, Vec<usize>) =
            (0..n).partition(|column| wanted.contains(column));
        for &column in &asked {
            whole[column] = self.units(column, first, rows, &mut stored[column]);
        }
        if asked.iter().any(|&column| whole[column].contains(&false)) {
            for &column in &others {
                whole[column] = self.units(column, first, rows, &mut stored[column]);
            }
        }
        let mut found = Found::default();
        let mut known: Option<(Vec<usize>, Vec<usize>, Vec<Vec<u8>>)> = None;
        for row in 0..rows {
            let unit = |column: usize| {
                whole[column][row].then(|| &stored[column][row * STORED_BYTES..][..UNIT_BYTES])
            };
            let lost: Vec<usize> =
                asked.iter().copied().filter(|&column| unit(column).is_none()).collect();
            let mut made = vec![Vec::new(); lost.len()];
            if !lost.is_empty() {
                let mut present: Vec<usize> =
                    (0..n).filter(|&column| unit(column).is_some()).collect();
                present.truncate(self.code().data());
                if known.as_ref().is_none_or(|known| known.0 != present || known.1 != lost) {
                    known = self
                        .code()
                        .recovery(&present, &lost)
                        .ok()
                        .map(|matrix| (present.clone(), lost.clone(), matrix));
                }
                match &known {
                    Some((_, _, matrix)) => combine(
                        matrix,
                        &present.iter().filter_map(|&column| unit(column)).collect::<Vec<_>>(),
                        &mut made,
                    ),
                    None => {
                        found.hopeless.push(first + row as u64);
                        found.without = (0..n)
                            .filter(|&column| unit(column).is_none())
                            .map(|column| self.node(column))
                            .collect();
                        made.iter_mut().for_each(|unit| unit.resize(UNIT_BYTES, 0));
                    }
                }
                found.bad.extend(lost.iter().map(|&column| (first + row as u64, column)));
            }
            for (column, out) in wanted.iter().zip(out.iter_mut()) {
                let unit = unit(*column)
                    .or_else(|| Some(&made[lost.iter().position(|lost| lost == column)?][..]));
                out.extend_from_slice(unit.unwrap_or(&[0; UNIT_BYTES]));
            }
        }
        found
    }

    /// Looks at all units of some rows. With `mends` bad ones are made anew where they belong, if
    /// their node is there, and count as `repaired` then. With `only` that column is written to its file, bad where
    /// it can't be made.
    ///
    /// # Errors
    /// `Stopped` when `only` can't be made because a node does not answer any more, and those of writing.
    pub(crate) fn repair(
        &self,
        at: u64,
        bytes: u64,
        only: Option<(usize, &dyn File)>,
        mends: bool,
    ) -> Result<Repaired> {
        let (mut row, end) = (at / self.row_bytes(), (at + bytes).div_ceil(self.row_bytes()));
        let (mut done, mut touched) = (Repaired::default(), BTreeMap::new());
        while row < end {
            let rows = (end - row).min(ROWS_AT_ONCE) as usize;
            let all: Vec<usize> = only
                .map_or_else(|| (0..self.code().columns()).collect(), |(column, _)| vec![column]);
            let mut out = vec![Vec::with_capacity(rows * UNIT_BYTES); all.len()];
            let found = self.rows(row, rows, &all, &mut out);
            done.lost_rows += found.hopeless.len() as u64;
            done.units += (rows * all.len()) as u64;
            if let Some((column, file)) = only {
                self.nodes_answer(&found.without)?;
                let mut stored = Vec::with_capacity(rows * STORED_BYTES);
                for (n, unit) in out[0].chunks(UNIT_BYTES).enumerate() {
                    stored.extend_from_slice(unit);
                    // A unit that can't be rebuilt gets a wrong checksum: it must not look whole.
                    let lost = found.hopeless.contains(&(row + n as u64));
                    stored.extend_from_slice(
                        &(self.seal(column, row + n as u64, unit) ^ u64::from(lost)).to_le_bytes(),
                    );
                }
                file.write_at(Self::place(row), &stored)?;
            } else {
                done.bad_units += found.bad.len() as u64;
                for &(bad, column) in
                    found.bad.iter().filter(|(bad, _)| mends && !found.hopeless.contains(bad))
                {
                    if self.shared.here() >> self.node(column) & 1 == 0 {
                        continue;
                    }
                    let unit = &out[column][(bad - row) as usize * UNIT_BYTES..][..UNIT_BYTES];
                    let mend = || {
                        let file = self.column(column, true)?;
                        file.write_at(Self::place(bad), unit)?;
                        let seal = self.seal(column, bad, unit).to_le_bytes();
                        file.write_at(Self::place(bad) + UNIT_BYTES as u64, &seal)?;
                        Ok(file)
                    };
                    if let Some(file) = self.of_node(column, mend())? {
                        touched.insert(column, file);
                        done.repaired_units += 1;
                    }
                }
            }
            row += rows as u64;
        }
        for (&column, file) in &touched {
            // A column that was not there was made.
            let names = || self.shared.directory(self.node(column))?.sync_names();
            self.of_node(column, file.sync().and_then(|()| names()))?;
        }
        Ok(done)
    }

    /// The result of work on the node of a column; `None` when the node is on another host and failed: it is left out,
    /// and the others go on.
    fn of_node<T>(&self, column: usize, done: Result<T>) -> Result<Option<T>> {
        let node = self.node(column);
        match done {
            Err(error) if self.shared.is_far(node) => self.shared.failed(node, error).map(|_| None),
            done => done.map(Some),
        }
    }

    /// Errors when one of these nodes, which lack what others are to be made from, does not answer at all: that
    /// is no damage, and passes.
    fn nodes_answer(&self, nodes: &[usize]) -> Result<()> {
        for &n in nodes.iter().filter(|&&n| self.shared.here() >> n & 1 == 1) {
            if let Err(Absent::Gone(why)) = read_label(Some(&**self.shared.directory(n)?)) {
                let why = format!(
                    "node {n} does not answer any more ({why}); do it again when it is there"
                );
                return Err(Error::new(Kind::Stopped, why));
            }
        }
        Ok(())
    }

    /// Looks at the headers of columns on nodes that are there, and with `mends` makes those anew
    /// that are not whole: who has the last one of a segment knows where its columns are.
    pub(crate) fn repair_headers(&self, mends: bool) -> Result<Repaired> {
        let mut done = Repaired::default();
        for column in (0..self.code().columns())
            .filter(|&column| self.shared.here() >> self.node(column) & 1 == 1)
        {
            let directory = self.shared.directory(self.node(column))?;
            let found = directory.open(&self.name).and_then(|file| header(&*file));
            let decoded = found.and_then(|bytes| {
                Layout::decode(&self.shared, self.layout.segment, Some(column), &bytes)
            });
            if decoded.is_ok_and(|layout| layout == self.layout) {
                continue;
            }
            done.bad_units += 1;
            if !mends {
                continue;
            }
            self.files.lock().remove(&column);
            let made = self.column(column, true).and_then(|file| file.sync());
            if self.of_node(column, made.and_then(|()| directory.sync_names()))?.is_some() {
                done.repaired_units += 1;
            }
        }
        Ok(done)
    }

    /// Makes the file of a column that is to be filled on another directory.
    pub(crate) fn begin_column(
        &self,
        column: usize,
        directory: &dyn Files,
    ) -> Result<Arc<dyn File>> {
        let file = fresh(directory, &self.name)?;
        file.write_at(0, &self.layout.encode(&self.shared, column))?;
        Ok(file)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// The bad units of the rows that were read.
#[derive(Default)]
struct Found {
    /// Units that were not there or not whole: row and column.
    bad: Vec<(u64, usize)>,
    /// Rows with more bad units than parity.
    hopeless: Vec<u64>,
    /// The nodes that do not have the last of these.
    without: Vec<usize>,
}

/// Counts of the units that were checked, bad and rebuilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Units looked at.
    pub units: u64,
    /// Of them not there or not whole.
    pub bad_units: u64,
    /// Of those made anew.
    pub repaired_units: u64,
    /// Rows that are lost.
    pub lost_rows: u64,
}

/// A sync of all columns that was begun; a column without one was not there.
struct SegmentSync {
    segment: Arc<Segment>,
    begun: BTreeMap<usize, Result<Box<dyn PendingSync>>>,
}

impl PendingSync for SegmentSync {
    fn is_over(&self) -> bool {
        self.begun.values().flatten().all(|begun| begun.is_over())
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let SegmentSync { segment, begun } = *self;
        let begun = Mutex::new(begun);
        segment.on_all(|segment, column| {
            let begun = begun.lock().remove(&column);
            let absent = || {
                let node = segment.node(column);
                Err(Error::new(Kind::NotFound, format!("node {node} was absent")))
            };
            begun.unwrap_or_else(absent)?.wait()
        })
    }
}

impl File for Segment {
    fn bytes(&self) -> Result<u64> {
        let (mut most, mut failed) = (None, None);
        for column in 0..self.code().columns() {
            if self.shared.here() >> self.node(column) & 1 == 1
                && let Ok(file) = self.column(column, false)
            {
                match file.bytes() {
                    Ok(bytes) => most = most.max(Some(bytes)),
                    Err(error) if self.shared.is_far(self.node(column)) => failed = Some(error),
                    Err(error) => return Err(error),
                }
            }
        }
        let most = match (most, failed) {
            (None, Some(error)) => return Err(error),
            (most, _) => {
                most.unwrap_or(0).saturating_sub(HEADER_BYTES as u64) / STORED_BYTES as u64
            }
        };
        // Another host may tell any length.
        Ok(most.saturating_mul(self.row_bytes()))
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let (k, row_bytes) = (self.code().data(), self.row_bytes());
        let end = at + into.len() as u64;
        let mut row = at / row_bytes;
        while row * row_bytes < end {
            let rows = (end.div_ceil(row_bytes) - row).min(ROWS_AT_ONCE) as usize;
            // Of one row perhaps not all columns.
            let (low, high) = (at.max(row * row_bytes), end.min((row + rows as u64) * row_bytes));
            let column = |byte: u64| (byte % row_bytes) as usize / UNIT_BYTES;
            let wanted: Vec<usize> = if rows == 1 {
                (column(low)..=column(high - 1)).collect()
            } else {
                (0..k).collect()
            };
            let mut out = vec![Vec::with_capacity(rows * UNIT_BYTES); wanted.len()];
            let found = self.rows(row, rows, &wanted, &mut out);
            if let Some(&lost) = found.hopeless.first() {
                let why = format!(
                    "segment {}, row {lost}: nodes {:?} lost it, more than there is parity",
                    self.layout.segment, found.without
                );
                return Err(corrupt(why));
            }
            for (n, &column) in wanted.iter().enumerate() {
                for (n, unit) in out[n].chunks(UNIT_BYTES).enumerate() {
                    let start = (row + n as u64) * row_bytes + (column * UNIT_BYTES) as u64;
                    let (from, to) = (start.max(at), (start + UNIT_BYTES as u64).min(end));
                    if from < to {
                        let part = &unit[(from - start) as usize..(to - start) as usize];
                        into[(from - at) as usize..(to - at) as usize].copy_from_slice(part);
                    }
                }
            }
            row += rows as u64;
        }
        Ok(into.len())
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.write_parts(at, &[data])
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        if !at.is_multiple_of(self.row_bytes()) {
            // The log has containers, or the columns a header, that no put wrote.
            let segment = self.layout.segment;
            return Err(corrupt(format!("segment {segment} is damaged: byte {at} begins no row")));
        }
        let row = at / self.row_bytes();
        let columns = self.encode(row, parts);
        self.on_all(|segment, column| {
            segment.column(column, true)?.write_at(Self::place(row), &columns[column])
        })
    }

    fn sync(&self) -> Result<()> {
        self.on_all(|segment, column| segment.column(column, true)?.sync())
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let here = self.shared.here();
        let begun = (0..self.code().columns())
            .filter(|&column| here >> self.node(column) & 1 == 1)
            .map(|column| (column, self.column(column, true).map(|file| file.begin_sync())))
            .collect();
        Box::new(SegmentSync { segment: self, begun })
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        let end = Self::place(bytes.div_ceil(self.row_bytes()));
        self.on_all(|segment, column| segment.column(column, true)?.set_bytes(end))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        let (first, end) = (
            Self::place(at / self.row_bytes()),
            Self::place((at + bytes).div_ceil(self.row_bytes())),
        );
        self.on_all(|segment, column| segment.column(column, true)?.reserve(first, end - first))
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        let (first, end) = (
            Self::place(at / self.row_bytes()),
            Self::place((at + bytes).div_ceil(self.row_bytes())),
        );
        for column in 0..self.code().columns() {
            // Space of a node that is absent is given back when it is filled anew.
            if self.shared.here() >> self.node(column) & 1 == 1 {
                match self.column(column, false).and_then(|file| file.punch(first, end - first)) {
                    Err(error) if error.kind() == Kind::NotFound => {}
                    Err(error) if self.shared.is_far(self.node(column)) => {
                        drop(self.shared.failed(self.node(column), error)?);
                    }
                    punched => punched?,
                }
            }
        }
        Ok(())
    }
}
