//! Usage counts (dedupv1 3.7): a file of them, brought up to the log's end from what came and went
//! since.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::Peekable,
    sync::Arc,
    vec::IntoIter,
};

use onefold_core::{Error, File, Kind, Result};

use super::{
    counts_file::{CountsReader, CountsWriter, files_of_counts, pages},
    gone::is_gone,
    memory_file::MemoryFile,
    names::{MOST, counts_name, highest_counts},
    pages::PagesWriter,
    proof::Written,
    tree_nodes::NodeChanges,
};
use crate::{
    container::{Pace, Rewriter, addresses},
    format::{
        Address, ContainerId,
        damage::is_damage,
        names::{fresh, whole_or_gone},
        recipe::{Part, parts},
        record::{Pieces, Record},
    },
    operations_log::{Archive, is_erased},
    rules::Rule,
    tables::{Difference, NamedCounts, Tables},
};

/// Counts that found no room on the disk.
pub(crate) struct InMemory {
    pub(crate) file: Arc<dyn File>,
    /// As a frame would name them.
    pub(crate) named: NamedCounts,
    /// The place in the log up to which they count.
    pub(crate) upto: u64,
}

/// How far counting came.
pub(crate) enum Counted {
    /// All that came and went is counted, but for nodes that are damaged.
    All,
    /// There is more: nothing may be condemned yet.
    Portion,
    /// The disk has no room: all is counted, in memory.
    InMemory(InMemory),
    /// There are snapshots of put keys that nobody has looked through: they may name what is not there yet,
    /// and would take it along when they go. Nothing was counted.
    Unproven,
}

/// What is done where put keys added snapshots that nobody has looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfUnproven {
    /// Nothing is counted.
    Waits,
    /// What came and went before the first of them is counted, if nothing but them is left then; the rest is left
    /// to whoever counts next. Chunks that they name may be condemned, and are spared when condemned chunks
    /// are looked at again.
    CountsBefore,
}

/// Counts of a portion that are durable, and that no frame names yet.
struct Made {
    number: u64,
    written: Written,
    /// The tables with the differences that are counted.
    portion: Tables,
    changes: NodeChanges,
}

/// Where the counts of a portion are.
enum Making {
    OnDisk(Box<Made>),
    InMemory(InMemory),
}

/// Bytes of a container in a leaf of its table.
const CONTAINER_BYTES: u64 = 31;

/// True when there are snapshots of put keys that manage has not looked through.
pub(super) fn has_unproven(tables: &Tables) -> bool {
    tables.roles.as_ref().is_some_and(|roles| !roles.unproven.is_empty())
}

/// The tables with what may be counted of them, from the counts that there are or from the roots; `None` where
/// snapshots that manage has not looked through are in the way.
pub(super) fn to_be_counted(tables: &Arc<Tables>, goes_on: bool) -> Option<Arc<Tables>> {
    match (has_unproven(tables), goes_on) {
        (false, _) => Some(tables.clone()),
        (true, true) => Some(Arc::new(tables.with_differences(tables.countable()))),
        (true, false) => tables.without_unproven().map(Arc::new),
    }
}

/// The rewriter counts, since it reads recipes.
impl Rewriter {
    /// Brings the counts a portion nearer to the log's end. `changed` tells of which containers the
    /// counts change, and with which version. With `may_use_reserve` it needs no room on the disk:
    /// what is counted may then free some.
    ///
    /// # Errors
    /// `NoSpace` without `may_use_reserve`; those of the system, and of the pace.
    pub(crate) fn count(
        &mut self,
        may_use_reserve: bool,
        if_unproven: IfUnproven,
        changed: impl FnOnce(&mut Rewriter, &Tables, &NodeChanges) -> Result<Vec<(ContainerId, u64)>>,
    ) -> Result<Counted> {
        let now = self.archive.refresh()?;
        if has_unproven(&now) && if_unproven == IfUnproven::Waits {
            return Ok(Counted::Unproven);
        }
        let mut goes_on = self.can_go_on(&now)?;
        let Some(mut tables) = to_be_counted(&now, goes_on) else {
            return Ok(Counted::Unproven);
        };
        if goes_on && tables.differences.is_empty() && tables.snapshots.due().next().is_none() {
            return Ok(Counted::All);
        }
        let made = match self.make(&tables, goes_on, may_use_reserve) {
            // A page of counts is damaged that this portion needs.
            Err(error) if goes_on && self.are_lost(&tables, &error)? => {
                goes_on = false;
                let Some(all) = to_be_counted(&now, goes_on) else { return Ok(Counted::Unproven) };
                tables = all;
                self.make(&tables, goes_on, may_use_reserve)
            }
            made => made,
        };
        let Made { number, written, portion, changes } = match made? {
            Making::OnDisk(made) => *made,
            Making::InMemory(counts) => return Ok(Counted::InMemory(counts)),
        };
        let (mut differences, upto) = (portion.differences.len() as u64, tables.sequence);
        // What is counted is no difference any more.
        if !self.archive.keeps(Rule::PortionCountedOnce) && differences > 1 {
            differences -= 1;
        }
        let containers = changed(self, &portion, &changes)?;
        let all = portion.differences.len() == tables.differences.len() && !changes.is_cut;
        let absent = changes.absent;
        let due =
            tables.trees && (!changes.due.is_empty() || tables.snapshots.due().next().is_some());
        let before = self.files_of(&tables);
        self.archive.commit(may_use_reserve, |_| {
            let proof = written.proof;
            let counted = Record::Counted { file: number, differences, upto, proof };
            let changed = (!containers.is_empty()).then_some(Record::Changed { containers });
            let due = due.then_some(Record::CountsDue { nodes: changes.due });
            Ok([counted].into_iter().chain(changed).chain(due).collect())
        })?;
        self.absent += absent;
        self.remove_files(&before, &written.files)?;
        Ok(if all { Counted::All } else { Counted::Portion })
    }

    /// Makes the counts of the next portion, durable on return; without room on the disk, and with
    /// nothing left of the reserve, of all, in memory.
    fn make(&mut self, tables: &Tables, goes_on: bool, may_use_reserve: bool) -> Result<Making> {
        let limit = self.archive.settings.count_portion;
        let (portion, changes) = self.portion(tables, goes_on, limit)?;
        let number = self.fresh_number(tables)?;
        loop {
            let written = self.write_counts(number, &portion, goes_on, &changes);
            let is_full = matches!(&written, Err(error) if error.kind() == Kind::NoSpace);
            if is_full && may_use_reserve && self.archive.reserve().spend()? {
                continue;
            }
            // No frame names it, not even one that was lost.
            let written = whole_or_gone(&*self.archive.files, &counts_name(number), written);
            if is_full && may_use_reserve {
                return self.count_in_memory(tables, goes_on).map(Making::InMemory);
            }
            let made = Made { number, written: written?, portion, changes };
            return Ok(Making::OnDisk(Box::new(made)));
        }
    }

    /// The files that the counts lie in. Those of counts that can't be read are removed by the next
    /// collection.
    pub(super) fn files_of(&self, tables: &Tables) -> BTreeSet<u64> {
        let files = files_of_counts(&self.archive, tables.named_counts());
        files.unwrap_or_else(|_| BTreeSet::from([tables.counts]))
    }

    /// Removes files that the counts lay in `before`, and of which no page counts any more.
    pub(super) fn remove_files(&self, before: &BTreeSet<u64>, now: &BTreeSet<u64>) -> Result<()> {
        let gone = before.iter().filter(|file| !now.contains(file));
        gone.map(|file| self.archive.files.remove(&counts_name(*file)))
            .try_for_each(|removed| removed.or_else(not_there))
    }

    /// The number of new counts: one that no file has. A process may have died with its frame on the
    /// way, and the medium may show that frame later, which must not find what another process
    /// counted. The file with the highest number stays until a frame names a higher one.
    pub(super) fn fresh_number(&self, tables: &Tables) -> Result<u64> {
        let highest = match self.archive.keeps(Rule::CountsNumberedAnew) {
            true => highest_counts(&self.archive.files.names()?),
            false => 0,
        };
        Ok(tables.counts.max(highest) + 1)
    }

    /// Counts everything in memory, for this time: not even the reserve is left.
    fn count_in_memory(&mut self, tables: &Tables, goes_on: bool) -> Result<InMemory> {
        let file: Arc<dyn File> = Arc::new(MemoryFile::default());
        let (all, changes) = self.portion(tables, goes_on, usize::MAX)?;
        let number = tables.counts + 1;
        let written = self.write_counts_to(&file, number, (&all, goes_on, &changes), false)?;
        self.absent += changes.absent;
        let named = NamedCounts { number, proof: Some(written.proof) };
        Ok(InMemory { file, named, upto: tables.sequence })
    }

    /// The tables with the differences that are counted next, and what these change in trees. They
    /// are the oldest ones: first all that came, then all that went, until one that came again. Those
    /// that went wait while a descent of those that came is cut.
    pub(super) fn portion(
        &mut self,
        tables: &Tables,
        goes_on: bool,
        limit: usize,
    ) -> Result<(Tables, NodeChanges)> {
        // Without counts all that is there is counted, and no difference is left.
        if !goes_on {
            let changes = self.node_changes(tables, false, limit)?;
            return Ok((tables.clone(), changes));
        }
        let (mut n, mut came, mut weighs) = (0, 0, 0usize);
        for difference in tables.differences.iter() {
            weighs = weighs.saturating_add(weight(difference));
            if n > 0 && (weighs > limit || difference.added && came < n) && limit < usize::MAX {
                break;
            }
            n += 1;
            came += usize::from(difference.added);
        }
        let mut portion = tables.with_differences(n);
        let changes = self.node_changes(&portion, true, limit)?;
        if changes.is_cut {
            portion = tables.with_differences(came);
        }
        Ok((portion, changes))
    }

    /// Bytes that a portion reads and writes, whatever came and went: all counts, or, where they are in
    /// pages, the containers that it looks through for new ones.
    pub(crate) fn bytes_of_counts(&self, tables: &Tables) -> Result<u64> {
        if self.archive.label().counts_in_pages {
            return Ok(tables.containers.len() as u64 * CONTAINER_BYTES);
        }
        match self.archive.files.open(&counts_name(tables.counts)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(0),
            opened => opened?.bytes(),
        }
    }

    /// True when a portion can go on from the counts that there are. Of pages only the directory is
    /// looked at: one that is damaged is met when it is needed.
    fn can_go_on(&self, tables: &Tables) -> Result<bool> {
        if tables.counts == 0 || self.lost_counts == Some(tables.counts) {
            return Ok(false);
        }
        if !self.archive.label().counts_in_pages {
            return self.has_counts(tables);
        }
        match pages(&self.archive, tables.named_counts(), &self.pace) {
            Ok(Some(_)) => Ok(true),
            // They were made before an upgrade.
            Ok(None) => self.has_counts(tables),
            Err(error) if is_damage(&error) || error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True when this error is that of counts which can't be read.
    fn are_lost(&self, tables: &Tables, error: &Error) -> Result<bool> {
        let may_be = is_damage(error) || error.kind() == Kind::NotFound;
        Ok(may_be && self.archive.label().counts_in_pages && !self.has_counts(tables)?)
    }

    /// Looks at all pages of the counts, before something is made of them. False when one is damaged:
    /// then the next portion counts everything anew.
    pub(crate) fn trusts_counts(&mut self) -> Result<bool> {
        let tables = self.archive.tables();
        if !self.archive.label().counts_in_pages || self.has_counts(&tables)? {
            return Ok(true);
        }
        self.lost_counts = Some(tables.counts);
        Ok(false)
    }

    /// True when there are counts to go on from. A lost or damaged file of counts is made again, from
    /// all recipes.
    pub(super) fn has_counts(&self, tables: &Tables) -> Result<bool> {
        match tables.counts {
            0 => Ok(false),
            _ => match CountsReader::open(&self.archive, tables.named_counts(), &self.pace) {
                Ok(_) => Ok(true),
                Err(error) if is_damage(&error) || error.kind() == Kind::NotFound => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Writes new counts, durable on return. `on` goes on from the counts there are; else all streams are
    /// counted.
    fn write_counts(
        &mut self,
        number: u64,
        tables: &Tables,
        on: bool,
        changes: &NodeChanges,
    ) -> Result<Written> {
        let file = fresh(&*self.archive.files, &counts_name(number))?;
        self.write_counts_to(&file, number, (tables, on, changes), true)
    }

    fn write_counts_to(
        &mut self,
        file: &Arc<dyn File>,
        number: u64,
        (tables, on, changes): (&Tables, bool, &NodeChanges),
        carries: bool,
    ) -> Result<Written> {
        if on
            && self.archive.label().counts_in_pages
            && let Some(before) = pages(&self.archive, tables.named_counts(), &self.pace)?
        {
            let writer = PagesWriter::over(&self.archive, file.clone(), number);
            let mut writer = writer.after(&before);
            self.write_changed(tables, changes, &before, &mut writer)?;
            if carries {
                writer.carry(&before)?;
            }
            return writer.finish();
        }
        let mut writer = CountsWriter::over(&self.archive, file.clone(), number)?;
        self.each_count(tables, on, changes, &mut |id, counts| writer.push(id, counts))?;
        writer.finish()
    }

    /// Tells the counts that these tables make, of containers in the order of their numbers; writes
    /// nothing.
    pub(crate) fn counts(
        &mut self,
        tables: &Tables,
        each: &mut dyn FnMut(ContainerId, &[u16]) -> Result<()>,
    ) -> Result<()> {
        let goes_on = self.has_counts(tables)?;
        let (all, changes) = self.portion(tables, goes_on, usize::MAX)?;
        self.each_count(&all, goes_on, &changes, each)
    }

    fn each_count(
        &mut self,
        tables: &Tables,
        on: bool,
        changes: &NodeChanges,
        each: &mut dyn FnMut(ContainerId, &[u16]) -> Result<()>,
    ) -> Result<()> {
        let mut ranges = Ranges::new(self, tables, on, self.archive.settings.count_slots)?;
        while let Some(mut range) = ranges.next(self, tables)? {
            self.add_up(tables, on, changes, &mut range)?;
            range.iter().try_for_each(|(id, counts)| each(*id, counts))?;
        }
        Ok(())
    }

    /// Slots of a container that has no counts yet: where it was merged, up to the last one that
    /// its home has.
    pub(super) fn slots(&mut self, tables: &Tables, id: ContainerId) -> Result<usize> {
        let mut slots = 0;
        for container in tables.places(id) {
            let container = container?;
            if container.stored.id == id {
                return Ok(container.stored.chunks as usize);
            }
            match self.chunk_reader.metadata(&self.container_reader, &container) {
                Ok(metadata) => {
                    let own = metadata.chunks.iter().filter(|chunk| chunk.first.container == id);
                    slots = slots
                        .max(own.map(|chunk| usize::from(chunk.first.slot) + 1).max().unwrap_or(0));
                }
                // Nothing is known of it: nothing is counted, and nothing condemned.
                Err(error) if error.kind() == Kind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        Ok(slots)
    }

    /// Applies to a range what came and went.
    pub(super) fn add_up(
        &mut self,
        tables: &Tables,
        on: bool,
        changes: &NodeChanges,
        range: &mut dyn CountsAtHand,
    ) -> Result<()> {
        if !on {
            return self.add_roots(tables, changes, range, &mut |what, error| {
                Err(error.context(format!("{what} can't be read")))
            });
        }
        // Additions are counted first, so that no count falls below zero on the way.
        let (mut added, mut removed): (Vec<&Vec<Pieces>>, Vec<&Vec<Pieces>>) =
            (Vec::new(), Vec::new());
        for difference in tables.differences.iter().filter(|difference| !difference.nodes) {
            if is_gone(&self.archive, tables, &difference.recipe)? {
                continue;
            }
            if difference.added {
                added.push(&difference.recipe)
            } else {
                removed.push(&difference.recipe)
            }
        }
        for recipe in added {
            self.walk(tables, recipe, &mut |first, count| {
                change(range, first, count, |n| n.saturating_add(1));
            })?;
        }
        for &root in &changes.added {
            change(range, root, 1, |n| n.saturating_add(1));
        }
        self.named_by(tables, &changes.rises, &mut |first, count| {
            change(range, first, count, |n| n.saturating_add(1));
        })?;
        let lowered = if self.archive.keeps(Rule::RemovedCountedOnce) { 1 } else { 2 };
        for recipe in removed {
            let walked =
                self.walk(tables, recipe, &mut |first, count| {
                    // A saturated count may stand for more references, so it stays.
                    change(range, first, count, |n| {
                        if n == MOST { n } else { n.saturating_sub(lowered) }
                    });
                });
            match walked {
                // A removed recipe that can't be read leaks its chunks; the count goes on.
                Err(error) if error.kind() == Kind::Corrupt => {}
                other => other?,
            }
        }
        // A saturated count may stand for more references, so it stays.
        let lower = |n: u16| if n == MOST { n } else { n.saturating_sub(lowered) };
        for &root in &changes.removed {
            change(range, root, 1, lower);
        }
        self.named_by(tables, &changes.falls, &mut |first, count| {
            change(range, first, count, lower);
        })
    }

    /// Adds to a range what all streams, volumes and snapshots name; `unread` decides about what is
    /// damaged.
    pub(super) fn add_roots(
        &mut self,
        tables: &Tables,
        changes: &NodeChanges,
        range: &mut dyn CountsAtHand,
        unread: &mut dyn FnMut(String, Error) -> Result<()>,
    ) -> Result<()> {
        let mut one_more = |first, count| change(range, first, count, |n| n.saturating_add(1));
        for (name, stream) in &tables.streams {
            if is_erased(&self.archive, stream.domain) {
                continue;
            }
            for recipe in stream.recipes() {
                match self.walk(tables, recipe, &mut one_more) {
                    Err(error) if is_damage(&error) => {
                        unread(format!("the recipe of stream '{}'", name.escape_debug()), error)?;
                    }
                    walked => walked?,
                }
            }
        }
        for volume in tables.volumes.all().values() {
            if is_erased(&self.archive, volume.domain) {
                continue;
            }
            match self.walk(tables, &volume.recipe(), &mut one_more) {
                Err(error) if is_damage(&error) => {
                    unread(format!("the map of volume '{}'", volume.name.escape_debug()), error)?;
                }
                walked => walked?,
            }
        }
        changes.added.iter().for_each(|&root| one_more(root, 1));
        self.named_by(tables, &changes.rises, &mut one_more)
    }

    /// Tells of all that a recipe names: its own pieces, and its chunks.
    pub(crate) fn walk(
        &mut self,
        tables: &Tables,
        recipe: &[Pieces],
        each: &mut dyn FnMut(Address, usize),
    ) -> Result<()> {
        for pieces in recipe {
            each(
                Address { container: pieces.container, slot: pieces.first },
                usize::from(pieces.count),
            );
            for address in addresses(pieces) {
                for part in
                    parts(self.chunk_reader.chunk(tables, &self.container_reader, address?)?)?
                {
                    match part {
                        Part::Run { first, fingerprints, .. } => each(first, fingerprints.len()),
                        Part::Slice { chunk, .. } => each(chunk, 1),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// The counts of some containers that follow one another.
pub(super) type Range = BTreeMap<ContainerId, Vec<u16>>;

/// Counts that changes are applied to.
pub(super) trait CountsAtHand {
    /// The counts of a container, if it is among them.
    fn of(&mut self, id: ContainerId) -> Option<&mut Vec<u16>>;
}

impl CountsAtHand for Range {
    fn of(&mut self, id: ContainerId) -> Option<&mut Vec<u16>> {
        self.get_mut(&id)
    }
}

/// All containers, some at a time in the order of their numbers, with the counts that there are of
/// them. Those without counts have zeroes.
pub(super) struct Ranges {
    old: Option<CountsReader>,
    next_old: Option<(ContainerId, Vec<u16>)>,
    fresh: Peekable<IntoIter<ContainerId>>,
    slots_max: usize,
}

impl Ranges {
    /// So many slots at a time; `on` takes the counts that there are.
    pub(super) fn new(
        rewriter: &Rewriter,
        tables: &Tables,
        on: bool,
        slots_max: usize,
    ) -> Result<Ranges> {
        let mut old = match on {
            true => {
                Some(CountsReader::open(&rewriter.archive, tables.named_counts(), &rewriter.pace)?)
            }
            false => None,
        };
        let next_old = old.as_mut().map_or(Ok(None), CountsReader::next)?;
        Ok(Ranges { old, next_old, fresh: numbers(tables)?.into_iter().peekable(), slots_max })
    }

    /// The next of them; `None` behind the last one.
    pub(super) fn next(
        &mut self,
        rewriter: &mut Rewriter,
        tables: &Tables,
    ) -> Result<Option<Range>> {
        let (mut range, mut slots) = (Range::new(), 0);
        while slots < self.slots_max {
            let old_id = self.next_old.as_ref().map(|entry| entry.0);
            let fresh_id = self.fresh.peek().copied();
            if let Some((id, counts)) =
                self.next_old.take_if(|entry| fresh_id.is_none_or(|fresh| entry.0 <= fresh))
            {
                // The counts of containers that are gone go too.
                if tables.has_place(id)? {
                    slots += counts.len();
                    range.insert(id, counts);
                }
                self.next_old = self.old.as_mut().map_or(Ok(None), CountsReader::next)?;
                if fresh_id == old_id {
                    self.fresh.next();
                }
            } else if let Some(id) = self.fresh.next() {
                let counts = vec![0; rewriter.slots(tables, id)?];
                slots += counts.len();
                range.insert(id, counts);
            } else {
                break;
            }
        }
        rewriter.pace.ask(2 * slots as u64)?;
        Ok((!range.is_empty()).then_some(range))
    }
}

/// Pieces of a recipe, or roots of trees, that a difference has; at least one.
pub(crate) fn weight(difference: &Difference) -> usize {
    difference.recipe.iter().map(|pieces| usize::from(pieces.count)).sum::<usize>().max(1)
}

/// Why the usage counts of a sealed archive are refused though they are whole: somebody put others of
/// their number in their place. Rot costs the time of a recount, and nobody is told.
pub(crate) fn counts_refused(archive: &Arc<Archive>, tables: &Tables) -> Result<Option<Error>> {
    if tables.counts == 0 || archive.identity.sealing().is_none() {
        return Ok(None);
    }
    let pace = Pace::default();
    let named = tables.named_counts();
    let any = NamedCounts { proof: None, ..named };
    match CountsReader::open(archive, named, &pace) {
        Err(error) if error.kind() == Kind::Corrupt => {
            let opened = CountsReader::open(archive, any, &pace);
            let is_rot = opened.is_err_and(|error| error.kind() == Kind::Corrupt);
            Ok(Some(error).filter(|_| !is_rot))
        }
        Err(error) if is_damage(&error) || error.kind() == Kind::NotFound => Ok(None),
        opened => opened.map(|_| None),
    }
}

/// What is not there need not be removed.
fn not_there(error: Error) -> Result<()> {
    if error.kind() == Kind::NotFound { Ok(()) } else { Err(error) }
}

/// The numbers by which recipes name containers, in their order.
pub(super) fn numbers(tables: &Tables) -> Result<Vec<ContainerId>> {
    let mut numbers: Vec<ContainerId> = tables.moved_to.keys().copied().collect();
    for container in &tables.containers {
        let container = container?;
        if container.merged.is_empty() {
            numbers.push(container.stored.id);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Changes the counts of a run of chunks, as far as they are in the range.
fn change(range: &mut dyn CountsAtHand, first: Address, count: usize, to: impl Fn(u16) -> u16) {
    let Some(counts) = range.of(first.container) else { return };
    counts.iter_mut().skip(usize::from(first.slot)).take(count).for_each(|n| *n = to(*n));
}
