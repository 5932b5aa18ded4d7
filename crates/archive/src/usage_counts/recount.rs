//! Usage counts from the roots: what streams, volumes and snapshots name, beside the counts that
//! were made by what came and went.
//!
//! Damage makes counts too high for good: a recipe or a page that can't be read when it goes leaves
//! its chunks counted. A recount finds these, and a count that is too low before a collection frees
//! what something names.
//!
//! *Crash argument:* the new counts are durable, under a number that no file has, before the frame
//! that names them. A recount that ends before its frame leaves a file that nothing names, and one
//! that ends behind it leaves the file of the old counts: the next collection removes either.
//!
//! *Memory:* two counts of a range of containers, and some bytes for each page of a snapshot. Of an
//! archive of several ranges, recipes and pages are read once for each of them.

use onefold_core::{Error, Kind, Result};

use super::{
    counting::{Range, Ranges, to_be_counted},
    counts_file::CountsWriter,
    gone::is_gone,
    names::{MOST, counts_name},
    tree_nodes::NodeChanges,
};
use crate::{
    container::Rewriter,
    format::{
        Address, ContainerId,
        damage::is_damage,
        names::whole_or_gone,
        record::{Pieces, Record},
    },
    rules::Rule,
    tables::Tables,
};

/// Containers that are named; more are counted only.
const CONTAINERS_NAMED: usize = 1000;

/// Slots of a range whose counts are compared while a reader checks an archive: 64 MiB.
const SLOTS_CHECKED: usize = 16 << 20;

/// Ranges that a check compares. Each of them reads all recipes and pages once more, and an archive that
/// a stranger made has as many chunks as he says.
const RANGES_CHECKED: usize = 16;

/// Chunks whose counts are wrong, and the containers that they are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Miscounted {
    /// How many.
    pub chunks: u64,
    /// The first thousand containers, each with the number of its chunks that are miscounted.
    pub containers: Vec<(ContainerId, u64)>,
    /// How many containers.
    pub in_containers: u64,
}

impl Miscounted {
    fn add(&mut self, id: ContainerId, chunks: u64) {
        if chunks == 0 {
            return;
        }
        self.chunks += chunks;
        self.in_containers += 1;
        if self.containers.len() < CONTAINERS_NAMED {
            self.containers.push((id, chunks));
        }
    }
}

/// The usage counts beside a count from the roots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountsFound {
    /// Chunks whose references were counted both ways.
    pub compared: u64,
    /// Chunks that more names than their counts say: a collection may free what something names.
    pub too_low: Miscounted,
    /// Chunks that less names than their counts say: their space is not freed. Where something can't
    /// be read, nobody knows what it names, and these are not told.
    pub too_high: Miscounted,
    /// The first that can't be read of what names chunks.
    pub unread: Option<String>,
    /// The archive has more chunks than a check compares: those of the containers with higher numbers were
    /// left out.
    pub is_part: bool,
}

/// Everything that a count from the roots needs, beside the containers.
struct Roots {
    /// Differences that came and went since the counts were made.
    since: (Tables, NodeChanges),
    /// All nodes of all snapshots.
    all: NodeChanges,
    unread: Option<String>,
}

impl Rewriter {
    /// Counts all references anew, and puts the new counts in the place of those that there are;
    /// durable on return. The collector has counted what came and went, and has condemned nothing.
    ///
    /// # Errors
    /// `Corrupt` when something that names chunks can't be read: then the counts stay as they are.
    /// `NoSpace`, and those of the system.
    pub(crate) fn recount(&mut self) -> Result<CountsFound> {
        let Some(tables) = to_be_counted(&self.archive.refresh()?, false) else {
            let why = "a put key added a snapshot meanwhile, which another gc looks through first";
            return Err(Error::new(Kind::Busy, why));
        };
        let Some(roots) = self.roots(&tables)? else {
            let why = "the usage counts can't be read yet: another gc makes them anew";
            return Err(Error::new(Kind::Corrupt, why));
        };
        refuse_unread(roots.unread.as_ref())?;
        let made = self.fresh_number(&tables)?;
        let (mut found, mut differ) = (CountsFound::default(), Vec::new());
        let written = CountsWriter::create(&self.archive, made).and_then(|mut writer| {
            let room = (self.archive.settings.count_slots, usize::MAX);
            self.compare(&tables, &roots, room, &mut found, &mut |id, counts, is_same| {
                if !is_same {
                    differ.push(id);
                }
                writer.push(id, counts)
            })?;
            refuse_unread(found.unread.as_ref())?;
            writer.finish()
        });
        let written = whole_or_gone(&*self.archive.files, &counts_name(made), written)?;
        let before = self.files_of(&tables);
        let mut differences = tables.differences.len() as u64;
        // Differences that are counted are none any more.
        if !self.archive.keeps(Rule::RecountedOnce) {
            differences = 0;
        }
        let upto = tables.sequence;
        let containers: Vec<_> = match tables.late {
            true => differ.into_iter().map(|id| (id, tables.versions)).collect(),
            false => Vec::new(),
        };
        self.archive.commit(true, |_| {
            let proof = written.proof;
            let counted = Record::Counted { file: made, differences, upto, proof };
            let changed = (!containers.is_empty()).then_some(Record::Changed { containers });
            let due = tables.snapshots.due().next().is_some();
            let due = due.then_some(Record::CountsDue { nodes: Vec::new() });
            Ok([counted].into_iter().chain(changed).chain(due).collect())
        })?;
        self.remove_files(&before, &written.files)?;
        Ok(found)
    }

    /// Compares the usage counts with a count from the roots; writes nothing. `None` where there are
    /// no counts, or they can't be read: the next collection makes them anew.
    ///
    /// # Errors
    /// Errors of the system. Damage is in what is found.
    pub(crate) fn check_counts(&mut self, tables: &Tables) -> Result<Option<CountsFound>> {
        let compared = self.roots(tables).and_then(|roots| {
            let Some(roots) = roots else { return Ok(None) };
            let mut found = CountsFound { unread: roots.unread.clone(), ..CountsFound::default() };
            // Small ranges, of a test, cost little.
            let (slots, most) = match self.archive.settings.count_slots {
                few if few < SLOTS_CHECKED => (few, usize::MAX),
                _ => (SLOTS_CHECKED, RANGES_CHECKED),
            };
            self.compare(tables, &roots, (slots, most), &mut found, &mut |_, _, _| Ok(()))?;
            Ok(Some(found))
        });
        match compared {
            // Told where containers, streams and snapshots are looked at.
            Err(error) if is_damage(&error) || error.kind() == Kind::NotFound => Ok(None),
            compared => compared,
        }
    }

    /// All that is named by something; `None` without counts to compare with.
    fn roots(&mut self, tables: &Tables) -> Result<Option<Roots>> {
        if !self.has_counts(tables)? {
            return Ok(None);
        }
        let since = self.portion(tables, true, usize::MAX)?;
        let all = self.node_changes(tables, false, usize::MAX)?;
        let unread = all.due.first().copied().or(all.first_absent).map(|node| {
            format!("a page of a snapshot (chunk {} of container {})", node.slot, node.container)
        });
        Ok(Some(Roots { since, all, unread }))
    }

    /// Counts ranges of containers both ways, of so many slots each, and so many at most. `each` gets the counts from the roots, and whether the
    /// others are the same.
    fn compare(
        &mut self,
        tables: &Tables,
        roots: &Roots,
        (slots, mut left): (usize, usize),
        found: &mut CountsFound,
        each: &mut dyn FnMut(ContainerId, &[u16], bool) -> Result<()>,
    ) -> Result<()> {
        let mut ranges = Ranges::new(self, tables, true, slots)?;
        while let Some(mut counted) = ranges.next(self, tables)? {
            if left == 0 {
                found.is_part = true;
                break;
            }
            left -= 1;
            let zeroes = |(id, counts): (&ContainerId, &Vec<u16>)| (*id, vec![0; counts.len()]);
            let mut named: Range = counted.iter().map(zeroes).collect();
            self.add_up(&roots.since.0, true, &roots.since.1, &mut counted)?;
            let unread = &mut found.unread;
            self.add_roots(tables, &roots.all, &mut named, &mut |what, error| {
                unread.get_or_insert(format!("{what} ({error})"));
                Ok(())
            })?;
            for ((&id, counts), named) in counted.iter().zip(named.values()) {
                let is_same = self.judge(tables, id, (counts, named), found)?;
                each(id, named, is_same)?;
            }
        }
        if found.unread.is_some() {
            found.too_high = Miscounted::default();
        }
        Ok(())
    }

    /// Compares the counts of a container; true when they are the same.
    fn judge(
        &mut self,
        tables: &Tables,
        id: ContainerId,
        (counts, named): (&[u16], &[u16]),
        found: &mut CountsFound,
    ) -> Result<bool> {
        found.compared += counts.len() as u64;
        let own = Pieces { container: id, first: 0, count: 1 };
        if counts == named || is_gone(&self.archive, tables, &[own])? {
            return Ok(true);
        }
        let (mut low, mut high) = (0, 0);
        for (slot, (&count, &named)) in (0u16..).zip(counts.iter().zip(named)) {
            // Nothing is freed by the count of a chunk that is not there. One that is as high as
            // counts go may stand for more, and stays.
            if count == named || !self.has_slot(tables, Address { container: id, slot })? {
                continue;
            }
            low += u64::from(count < named);
            high += u64::from(count > named && count < MOST);
        }
        found.too_low.add(id, low);
        found.too_high.add(id, high);
        Ok(false)
    }

    /// True when a container has the chunk of this address, as far as is known.
    fn has_slot(&mut self, tables: &Tables, address: Address) -> Result<bool> {
        for home in tables.places(address.container) {
            let home = home?;
            if home.stored.id == address.container && home.merged.is_empty() {
                return Ok(u32::from(address.slot) < home.stored.chunks);
            }
            match self.chunk_reader.metadata(&self.container_reader, &home) {
                Ok(metadata) => {
                    let found = metadata.chunks.binary_search_by_key(&address, |chunk| chunk.first);
                    if found.is_ok() {
                        return Ok(true);
                    }
                }
                Err(error) if is_damage(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Refuses to count where something can't be read.
fn refuse_unread(unread: Option<&String>) -> Result<()> {
    let Some(what) = unread else { return Ok(()) };
    Err(Error::new(
        Kind::Corrupt,
        format!(
            "{what} can't be read, and nobody knows what it names: the usage counts stay as they are; \
             `onefold check` tells what is damaged, and `onefold repair` restores what can be restored"
        ),
    ))
}
