//! The records that change put keys, and those that put keys sign.
//!
//! A frame that a put key signed is judged before it is applied. One that does more than a put key may is
//! passed over by everybody: its place in the order of changes is taken, and nothing in it counts. So a put
//! key that somebody else got hold of makes no archive unreadable for others.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Kind, Result};

use super::{
    persistent::List,
    roles::{MANAGE, NOBODY, PutKey, RANGES_KEPT, Roles, SETS_MAX},
    snapshots::{DIGITS, roots},
    state::{Difference, PLACE_ALIGN, Tables},
    unproven::UNPROVEN_MAX,
};
use crate::{
    format::{
        ContainerId,
        backup::{Completeness, Snapshot, SnapshotId, TEXTS_IN_ALL},
        bytes::corrupt,
        class::Class,
        container::CONTAINER_BYTES_MAX,
        domain::FIRST_DOMAIN,
        record::{Owner, Pieces, Record, Stored},
    },
    rules::Rule,
    settings::{ID_RANGE, Settings},
};

/// Why a frame of a put key counts for nothing.
pub(crate) type Refusal = &'static str;

const NO_KEY: Refusal = "no put key has this number";

const OTHER_SET: Refusal = "it adds a snapshot to a set of somebody else";

/// Facts about the records of a put key, which are noted once the records are applied.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    ranges: Vec<(u64, u64)>,
    listed: Vec<ContainerId>,
    segments: Vec<u32>,
    snapshots: Vec<SnapshotId>,
}

impl Tables {
    /// Judges the records of a put key: says what is to be noted of them, or why none of them counts. What
    /// is left to the tables is whether they fit together.
    pub(crate) fn judge_put<'a>(
        &'a self,
        number: u32,
        records: &'a [Record],
        settings: &'a Settings,
    ) -> std::result::Result<Notes, Refusal> {
        let roles = self.roles.as_ref().ok_or("the archive has no roles")?;
        let key = roles.key(number).ok_or(NO_KEY)?;
        let mut judge = Judging {
            tables: self,
            roles,
            key,
            number,
            notes: Notes::default(),
            places: Vec::new(),
            next_id: self.next_id,
            next_segment: self.next_segment,
            made: Vec::new(),
            settings,
        };
        records.iter().try_for_each(|record| judge.record(record))?;
        judge.places()?;
        Ok(judge.notes)
    }

    /// Errors when a put key can't add a snapshot of this set of this host, in a sentence for whoever asks for
    /// one, before anything is read.
    pub(crate) fn admits(&self, number: u32, host: &str, set: &str) -> Result<()> {
        let denied = |why: String| Err(Error::new(Kind::Denied, why));
        let Some(roles) = &self.roles else { return Ok(()) };
        let key = roles.key(number).ok_or_else(|| refused(NO_KEY))?;
        if !key.sets.iter().any(|one| one == set) {
            return Err(refused(OTHER_SET));
        }
        if key.name != host {
            return denied(format!(
                "this put key adds snapshots of host '{}', whose name it has, and of no other: not of '{}'",
                key.name.escape_debug(),
                host.escape_debug()
            ));
        }
        if roles.unproven.of(number) >= UNPROVEN_MAX {
            return denied(format!(
                "{UNPROVEN_MAX} snapshots of this put key, checkpoints too, have not been looked through, and \
                 there may be no more: `onefold gc` by who manages the archive looks through them"
            ));
        }
        Ok(())
    }

    /// Errors when records of manage list a container where others lie, or in a segment that a put key took.
    /// Manage looks before it appends: somebody else's writes to its segment must not be freed as its own.
    pub(crate) fn judge_manage(&self, records: &[Record]) -> Result<()> {
        let Some(roles) = &self.roles else { return Ok(()) };
        let (mut places, mut taken) = (Vec::new(), BTreeSet::new());
        for record in records {
            let listed = match record {
                Record::Unfinished { containers, .. } | Record::SnapshotMade { containers, .. } => {
                    containers.as_slice()
                }
                Record::Merged { to, .. } => std::slice::from_ref(to),
                Record::Reserved { segment: Some(segment), .. } => {
                    taken.insert(*segment);
                    &[]
                }
                _ => &[],
            };
            places.extend(listed.iter().map(|stored| {
                let place = &stored.place;
                (place.segment, place.at, place.at.saturating_add(self.taken(place)))
            }));
        }
        let from = |segment| match self.segments.get(&segment) {
            Some(known) => (roles.owner_of_segment(segment) == MANAGE).then_some(known.end),
            None => taken.contains(&segment).then_some(0),
        };
        lie_apart(&mut places, &from).map_err(|why| {
            let why = format!("{why}; nothing was changed: another process wrote there, try again");
            Error::new(Kind::Stopped, why)
        })
    }

    /// Notes what a put key did by records that were applied.
    pub(crate) fn note_put(&mut self, number: u32, notes: Notes) {
        let Some(roles) = &mut self.roles else { return };
        for id in notes.listed {
            roles.listed.insert(id, number);
        }
        for segment in notes.segments {
            roles.segments.insert(segment, number);
        }
        for id in notes.snapshots {
            roles.unproven.insert(id, number);
        }
        if let Some(key) = roles.keys.get_mut(&number) {
            key.ranges.extend(notes.ranges);
            let old = key.ranges.len().saturating_sub(RANGES_KEPT);
            key.ranges.drain(..old);
        }
    }

    /// A frame counts for nothing: its place in the order of changes is taken.
    pub(crate) fn pass_over(&mut self, sequence: u64, number: u32) {
        self.sequence = sequence;
        let Some(roles) = &mut self.roles else { return };
        match roles.keys.get_mut(&number) {
            Some(key) => key.refused = key.refused.saturating_add(1),
            None => roles.refused = roles.refused.saturating_add(1),
        }
    }

    /// Applies a record of put keys, which manage alone signs.
    pub(super) fn apply_roles(&mut self, record: Record) -> Result<()> {
        let none = || corrupt("the log changes put keys, and the archive has none");
        let roles = self.roles.as_mut().ok_or_else(none)?;
        match record {
            Record::PutKeyAdded { number, public, name, sets } => {
                if number != roles.next_key() || sets.len() > SETS_MAX {
                    return Err(corrupt("the log adds a put key that can't be"));
                }
                let (is_removed, refused, ranges) = (false, 0, Vec::new());
                roles
                    .keys
                    .insert(number, PutKey { public, name, sets, is_removed, refused, ranges });
            }
            Record::PutKeyRemoved { number } => {
                let gone = || corrupt("the log removes a put key that is not there");
                roles.keys.get_mut(&number).ok_or_else(gone)?.is_removed = true;
            }
            Record::Proven { upto, untrue, snapshots } => {
                roles.proven = roles.proven.max(upto);
                for id in untrue {
                    roles.listed.insert(id, NOBODY);
                }
                for id in snapshots {
                    roles.unproven.remove(id);
                }
                let mut done = Vec::new();
                for (id, owner) in &roles.listed {
                    let logged = self.containers.get(id)?.map(|container| container.logged);
                    let is_there = logged.is_some();
                    let is_proven = logged.is_none_or(|logged| logged <= roles.proven);
                    let is_kept = *owner == NOBODY || self.unfinished.contains_key(id);
                    if !is_there || is_proven && !is_kept {
                        done.push(*id);
                    }
                }
                done.iter().for_each(|id| {
                    roles.listed.remove(id);
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// How many of the differences come before the first that belongs to a snapshot of a put key which manage has
    /// not looked through. These may be counted; the rest may not, yet.
    pub(crate) fn countable(&self) -> usize {
        let all = self.differences.len();
        self.uncounted().last().map_or(all, |last| all - 1 - last)
    }

    /// These tables as if there were no snapshots that manage has not looked through, and no change behind
    /// theirs; `None` where another change lies between theirs or behind them: what is counted from the roots
    /// up has that change already.
    pub(crate) fn without_unproven(&self) -> Option<Tables> {
        let Some(roles) = self.roles.as_ref().filter(|roles| !roles.unproven.is_empty()) else {
            return Some(self.clone());
        };
        let last = self.uncounted();
        let are_last = last.len() == roles.unproven.len() && last.iter().copied().eq(0..last.len());
        let mut tables = self.with_differences(self.countable());
        let ids: Vec<SnapshotId> = roles.unproven.iter().map(|(id, _)| id).collect();
        tables.snapshots.apply(Record::Expired { ids }).ok().filter(|_| are_last)?;
        Some(tables)
    }

    /// Which differences belong to snapshots that manage has not looked through, from the last one on: 0 is the
    /// last. Of those that name the same, the last ones are taken for theirs, which comes to the same.
    pub(crate) fn uncounted(&self) -> Vec<usize> {
        let mut left: BTreeMap<Vec<Pieces>, usize> = BTreeMap::new();
        let unproven = self.roles.iter().flat_map(|roles| roles.unproven.iter());
        for snapshot in unproven.filter_map(|(id, _)| self.snapshots.get(id).ok()) {
            *left.entry(roots(snapshot)).or_default() += 1;
        }
        if left.is_empty() {
            return Vec::new();
        }
        let is_it = |one: &Difference| one.added && one.nodes && left.contains_key(&one.recipe);
        let all = self.differences.iter().enumerate().filter(|(_, one)| is_it(one));
        let all: Vec<_> = all.map(|(n, one)| (n, one.recipe.clone())).collect();
        let mut found = Vec::new();
        for (n, recipe) in all.into_iter().rev() {
            if let Some(count) = left.get_mut(&recipe).filter(|count| **count > 0) {
                *count -= 1;
                found.push(self.differences.len() - 1 - n);
            }
        }
        found
    }

    /// Which of these snapshots, that are gone, were counted, so that their references are to be taken away. Those
    /// that manage had not looked through were not: what is to be counted for them is removed here. Of differences
    /// that name the same the last ones go: an earlier one may be in counts that a collection is about to write.
    pub(super) fn uncount(&mut self, gone: &[Snapshot]) -> Vec<bool> {
        let Some(roles) = &mut self.roles else { return vec![true; gone.len()] };
        let mut left: BTreeMap<Vec<Pieces>, usize> = BTreeMap::new();
        let mut was_counted = Vec::with_capacity(gone.len());
        for one in gone {
            let is_unproven = roles.unproven.remove(one.id);
            if is_unproven {
                *left.entry(roots(one)).or_default() += 1;
            }
            was_counted.push(!is_unproven);
        }
        if !left.is_empty() {
            let is_kept = |one: &&Difference| {
                let same = if one.added && one.nodes { left.get_mut(&one.recipe) } else { None };
                same.filter(|count| **count > 0).map(|count| *count -= 1).is_none()
            };
            let mut kept: Vec<Difference> =
                self.differences.iter().rev().filter(is_kept).cloned().collect();
            kept.reverse();
            self.differences = List::default();
            self.differences.extend(kept);
        }
        was_counted
    }
}

/// Looks at the records of one frame, in their order.
struct Judging<'a> {
    tables: &'a Tables,
    roles: &'a Roles,
    key: &'a PutKey,
    number: u32,
    notes: Notes,
    /// Where the containers of this frame lie: segment, first byte and end.
    places: Vec<(u32, u64, u64)>,
    next_id: u64,
    next_segment: u32,
    /// The snapshots of this frame so far.
    made: Vec<&'a Snapshot>,
    /// The rules that are kept: those of a product, or all but one.
    settings: &'a Settings,
}

impl<'a> Judging<'a> {
    fn record(&mut self, record: &'a Record) -> std::result::Result<(), Refusal> {
        match record {
            Record::Reserved { owner: Owner::Ingest, first, count, segment, class } => {
                // Not more in a frame than others take at once, and where everybody goes on.
                let end = first.0.saturating_add(*count);
                let most = self.tables.next_id.saturating_add(ID_RANGE);
                if class.0 != Class::Plain || first.0 != self.next_id || end > most {
                    return Err("it takes numbers that are not the next ones");
                }
                self.next_id = end;
                if let Some(segment) = segment {
                    if *segment != self.next_segment {
                        return Err("it takes a segment that is not the next one");
                    }
                    self.next_segment = segment.saturating_add(1);
                    self.notes.segments.push(*segment);
                }
                if *count > 0 {
                    self.notes.ranges.push((first.0, self.next_id));
                }
                Ok(())
            }
            Record::Unfinished { containers, .. } => self.containers(containers),
            // Others may have taken its chunks since manage has proven it: `gc` removes what nobody uses.
            Record::Abandoned { .. } => Err("it gives up containers that others may use"),
            Record::SnapshotMade { snapshot, containers, finished } => {
                self.snapshot(snapshot)?;
                finished.iter().try_for_each(|id| self.own_unfinished(*id))?;
                self.notes.snapshots.push(snapshot.id);
                self.containers(containers)
            }
            _ => Err("a put key may add snapshots, and nothing else"),
        }
    }

    fn containers(&mut self, containers: &[Stored]) -> std::result::Result<(), Refusal> {
        containers.iter().try_for_each(|stored| self.container(stored))
    }

    /// A new container: of a number that this key took, behind all others of its segment.
    fn container(&mut self, stored: &Stored) -> std::result::Result<(), Refusal> {
        let new = &self.notes.ranges;
        let mut ranges = self.key.ranges.iter().chain(new);
        if !ranges.any(|(first, end)| (*first..*end).contains(&stored.id.0)) {
            return Err("it lists a container of a number that it did not take");
        }
        if stored.domain != FIRST_DOMAIN {
            return Err("it lists a container of another domain");
        }
        let place = &stored.place;
        let lies = 1..=CONTAINER_BYTES_MAX;
        if !place.at.is_multiple_of(PLACE_ALIGN) || !lies.contains(&place.bytes) {
            return Err("it lists a container that lies nowhere");
        }
        let end = place.at.saturating_add(self.tables.taken(place));
        self.places.push((place.segment, place.at, end));
        self.notes.listed.push(stored.id);
        Ok(())
    }

    /// The containers of the frame lie in segments that this key took, behind all others, and none over
    /// another one. Otherwise its place would be freed one day, with what others have there.
    fn places(&mut self) -> std::result::Result<(), Refusal> {
        let is_own = |segment| self.roles.segments.get(&segment) == Some(&self.number);
        let from = |segment| match self.tables.segments.get(&segment) {
            Some(known) if known.owner == Owner::Ingest && is_own(segment) => Some(known.end),
            // One that this frame takes.
            None if self.notes.segments.contains(&segment) => Some(0),
            _ => None,
        };
        lie_apart(&mut self.places, &from)
    }

    fn own_unfinished(&self, id: ContainerId) -> std::result::Result<(), Refusal> {
        let is_own = self.roles.listed.get(&id) == Some(&self.number)
            && self.tables.unfinished.contains_key(&id);
        if is_own { Ok(()) } else { Err("it names a container of somebody else as its own") }
    }

    fn snapshot(&mut self, snapshot: &'a Snapshot) -> std::result::Result<(), Refusal> {
        let (known, made) = (&self.tables.snapshots, &self.made);
        if !self.key.sets.contains(&snapshot.set) {
            return Err(OTHER_SET);
        }
        // Two hosts may call their sets alike, as after a path.
        if snapshot.host != self.key.name && self.settings.keeps(Rule::PutHostCompared) {
            return Err("it adds a snapshot of another host than that of its name");
        }
        // Checkpoints are out of lists from the beginning.
        let is_checkpoint = snapshot.completeness == Completeness::Checkpoint;
        if snapshot.domain != FIRST_DOMAIN || snapshot.forgotten.is_some() != is_checkpoint {
            return Err("it adds a snapshot that is gone");
        }
        let is_alike = |one: &Snapshot| one.id.0[..DIGITS] == snapshot.id.0[..DIGITS];
        if known.has_digits_of(snapshot.id) || made.iter().any(|one| is_alike(one)) {
            // Nobody could call the other one by its digits any more.
            return Err("it adds a snapshot whose id begins as that of another one: try again");
        }
        let unproven = self.roles.unproven.of(self.number) + made.len() as u64;
        if unproven >= UNPROVEN_MAX && self.settings.keeps(Rule::UnprovenBounded) {
            return Err("too many of its snapshots wait for `onefold gc`");
        }
        let own = made.iter().filter(|one| one.set == snapshot.set && one.forgotten.is_none());
        let last = own.map(|one| one.ended).max();
        let last = last.max(known.last_ended(&snapshot.host, &snapshot.set));
        if last.is_some_and(|last| snapshot.ended < last) {
            // What retention keeps of a period that is over stays what it was.
            return Err("it adds a snapshot before the last one of its set");
        }
        let long =
            made.iter().map(|one| one.long_texts()).fold(known.long_texts(), u64::saturating_add);
        let own = snapshot.long_texts();
        if own > 0 && long.saturating_add(own) > TEXTS_IN_ALL {
            return Err("it adds a snapshot with more paths and tags than there is memory for");
        }
        self.made.push(snapshot);
        Ok(())
    }
}

/// Judges places of new containers, each a segment with the first byte and the end: they lie where `from`
/// lets them begin, and none over another one.
fn lie_apart(
    places: &mut [(u32, u64, u64)],
    from: &dyn Fn(u32) -> Option<u64>,
) -> std::result::Result<(), Refusal> {
    places.sort_unstable();
    let mut last = None;
    for &(segment, at, end) in &*places {
        let begin = match last {
            Some((same, end)) if same == segment => Some(end),
            _ => from(segment),
        };
        match begin {
            None => return Err("it lists a container in a segment of somebody else"),
            Some(begin) if at < begin => return Err("it lists a container where others lie"),
            Some(_) => last = Some((segment, end)),
        }
    }
    Ok(())
}

/// The error of a put key that is refused.
pub(crate) fn refused(why: Refusal) -> Error {
    Error::new(
        Kind::Denied,
        format!(
            "this is a put key, which may add snapshots to its own sets and nothing else: {why}"
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{
        super::{
            apply::drop_empty_segments,
            snapshots::{looked_at, tests::snapshot},
        },
        *,
    };
    use crate::format::{Address, class::Class, label::Kinds, tree_node::TreeNodeRef};

    /// Tables with the put key 1 of host `web`, which adds to the sets `etc` and `home`, and the key 2 of host
    /// `db`, which adds to `etc`.
    fn tables() -> Tables {
        let kinds = Kinds { trees: true, heads: true, roles: true, ..Kinds::default() };
        let mut tables = Tables::new([1, 1, 0], kinds);
        for (number, name, sets) in [(1, "web", &["etc", "home"][..]), (2, "db", &["etc"])] {
            let sets = sets.iter().map(|&set| set.to_owned()).collect();
            let (public, name) = ([7; 32], name.to_owned());
            let added = Record::PutKeyAdded { number, public, name, sets };
            tables.apply(tables.sequence + 1, vec![added]).unwrap();
        }
        tables
    }

    fn made(snapshot: Snapshot) -> Record {
        let (containers, finished) = (Vec::new(), Vec::new());
        Record::SnapshotMade { snapshot: Box::new(snapshot), containers, finished }
    }

    /// The id of the snapshot of this number: its first digits are its own.
    fn id(n: u64) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.rotate_right(32).to_be_bytes());
        id
    }

    /// Adds snapshots in a frame of a put key.
    fn add(
        tables: &mut Tables,
        number: u32,
        snapshots: Vec<Snapshot>,
    ) -> std::result::Result<(), Refusal> {
        let records: Vec<Record> = snapshots.into_iter().map(made).collect();
        let notes = tables.judge_put(number, &records, &Settings::default())?;
        tables.apply(tables.sequence + 1, records).unwrap();
        tables.note_put(number, notes);
        Ok(())
    }

    #[test]
    fn rule_45_a_frame_is_judged_without_a_look_at_all_snapshots() {
        let mut tables = tables();
        let long = vec![vec![b'p'; 5000]];
        for n in 0..3000 {
            let one = Snapshot { ended: 1_000 + n, ..snapshot(id(n), "web", "etc") };
            let one = Snapshot { paths: long.clone(), ..one };
            let before = looked_at();
            add(&mut tables, 1, vec![one]).unwrap();
            assert_eq!(looked_at(), before, "for snapshot {n}");
        }
        let past = Snapshot { ended: 3_998, ..snapshot(id(9_999), "web", "etc") };
        assert!(add(&mut tables, 1, vec![past]).is_err());
    }

    #[test]
    fn rule_45_no_more_snapshots_wait_than_the_bound_says_and_a_proof_makes_room() {
        let mut tables = tables();
        for n in 0..UNPROVEN_MAX {
            add(&mut tables, 1, vec![snapshot(id(n), "web", "etc")]).unwrap();
        }
        let next = UNPROVEN_MAX;
        let more = |n| vec![snapshot(id(next + n), "web", "home")];
        assert!(add(&mut tables, 1, more(0)).unwrap_err().contains("onefold gc"));
        let error = tables.admits(1, "web", "etc").unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("onefold gc"), "{error}");
        // The bound is that of each key, and the same for who loads the tables.
        add(&mut tables, 2, vec![snapshot(id(next + 9), "db", "etc")]).unwrap();
        let kinds = Kinds { trees: true, heads: true, roles: true, ..Kinds::default() };
        let mut loaded = Tables::decode(&tables.encode(), [1, 1, 0], kinds).unwrap();
        assert!(add(&mut loaded, 1, more(0)).is_err());
        for tables in [&mut tables, &mut loaded] {
            let (upto, untrue) = (tables.sequence, Vec::new());
            let snapshots = vec![SnapshotId(id(0))];
            let proven = Record::Proven { upto, untrue, snapshots };
            tables.apply(tables.sequence + 1, vec![proven]).unwrap();
            // All snapshots of a frame count, or none.
            assert!(add(tables, 1, [more(0), more(1)].concat()).is_err());
            add(tables, 1, more(0)).unwrap();
            assert!(add(tables, 1, more(1)).is_err());
            // One that goes makes room, too.
            let ids = vec![SnapshotId(id(1))];
            tables.apply(tables.sequence + 1, vec![Record::Expired { ids }]).unwrap();
            add(tables, 1, more(1)).unwrap();
        }
        assert_eq!(tables.snapshots, loaded.snapshots);
        assert_eq!(tables.roles, loaded.roles);
    }

    #[test]
    fn rule_45_what_is_proven_is_counted_before_the_first_that_is_not() {
        let mut tables = tables();
        let of = |n: u64, root: u64| {
            let address = Address { container: ContainerId(root), slot: 0 };
            let one = snapshot(id(n), "web", "etc");
            Snapshot { root: TreeNodeRef { address, ..one.root }, ..one }
        };
        let counts = |tables: &Tables| {
            let without = tables.without_unproven();
            (tables.countable(), without.map(|it| (it.differences.len(), it.snapshots.len())))
        };
        assert_eq!(counts(&tables), (0, Some((0, 0))));
        // One of manage names the same as one of a put key that came later.
        tables.apply(9, vec![made(of(1, 5))]).unwrap();
        add(&mut tables, 1, vec![of(2, 5)]).unwrap();
        assert_eq!(counts(&tables), (1, Some((1, 1))));
        add(&mut tables, 1, vec![of(3, 6)]).unwrap();
        assert_eq!(counts(&tables), (1, Some((1, 1))));
        // A change behind them is not counted before they are looked through.
        let ids = vec![SnapshotId(id(1))];
        tables.apply(12, vec![Record::Expired { ids }]).unwrap();
        assert_eq!(counts(&tables), (1, None));
        let snapshots = vec![SnapshotId(id(2)), SnapshotId(id(3))];
        tables.apply(13, vec![Record::Proven { upto: 13, untrue: Vec::new(), snapshots }]).unwrap();
        assert_eq!(counts(&tables), (4, Some((4, 2))));
        add(&mut tables, 1, vec![of(4, 5)]).unwrap();
        assert_eq!(counts(&tables), (4, Some((4, 2))));
    }

    /// Between the two a collection may be about to write counts of all that came before the first.
    #[test]
    fn rule_45_a_snapshot_that_goes_takes_no_earlier_difference_along() {
        let mut tables = tables();
        let of = |n: u64, root: u64| {
            let address = Address { container: ContainerId(root), slot: 0 };
            let one = snapshot(id(n), "web", "etc");
            Snapshot { root: TreeNodeRef { address, ..one.root }, ..one }
        };
        tables.apply(9, vec![made(of(1, 5))]).unwrap();
        add(&mut tables, 1, vec![of(2, 6)]).unwrap();
        tables.apply(11, vec![made(of(3, 7))]).unwrap();
        add(&mut tables, 1, vec![of(4, 5), of(5, 8)]).unwrap();
        let ids = vec![SnapshotId(id(4)), SnapshotId(id(5))];
        tables.apply(13, vec![Record::Expired { ids }]).unwrap();
        let left: Vec<u64> =
            tables.differences.iter().map(|one| one.recipe[0].container.0).collect();
        assert_eq!(left, [5, 6, 7]);
        assert!(tables.differences.iter().all(|one| one.added));
    }

    /// Whoever has another put key takes a segment at any moment, and needs no lock for that.
    #[test]
    fn rule_45_the_newest_segment_of_each_key_stays_while_it_is_empty() {
        let mut tables = tables();
        let takes = |tables: &Tables| {
            let (owner, first) = (Owner::Ingest, ContainerId(tables.next_id));
            let segment = Some(tables.next_segment);
            vec![Record::Reserved { owner, first, count: 0, segment, class: (Class::Plain, 0) }]
        };
        let mut taken = Vec::new();
        for number in [MANAGE, 1, 1, 2, MANAGE, 1] {
            taken.push(tables.next_segment);
            let records = takes(&tables);
            let notes = (number != MANAGE)
                .then(|| tables.judge_put(number, &records, &Settings::default()).unwrap());
            tables.apply(tables.sequence + 1, records).unwrap();
            if let Some(notes) = notes {
                tables.note_put(number, notes);
            }
        }
        let freed = |tables: &mut Tables| {
            drop_empty_segments(tables);
            tables.segments.keys().copied().collect::<Vec<u32>>()
        };
        assert_eq!(freed(&mut tables), [taken[3], taken[4], taken[5]]);
        let gone = Record::PutKeyRemoved { number: 2 };
        tables.apply(tables.sequence + 1, vec![gone]).unwrap();
        assert_eq!(freed(&mut tables), [taken[4], taken[5]]);
    }

    #[test]
    fn rule_45_a_put_key_takes_no_digits_by_which_another_snapshot_is_called() {
        let mut tables = tables();
        add(&mut tables, 1, vec![snapshot([1; 16], "web", "etc")]).unwrap();
        let mut alike = [1; 16];
        alike[4] = 2;
        assert!(add(&mut tables, 2, vec![snapshot(alike, "db", "etc")]).is_err());
        let two = [[2; 16], [[2; 4], [3; 4], [4; 4], [5; 4]].concat().try_into().unwrap()];
        let two = |n: usize| snapshot(two[n], "db", "etc");
        assert!(add(&mut tables, 2, vec![two(0), two(1)]).is_err());
        add(&mut tables, 2, vec![two(1)]).unwrap();
        assert!(add(&mut tables, 2, vec![two(0)]).is_err());
    }

    #[test]
    fn rule_45_a_put_key_adds_snapshots_of_the_host_of_its_name_alone() {
        let mut tables = tables();
        let later = |n, host: &str, ended| Snapshot { ended, ..snapshot(id(n), host, "etc") };
        add(&mut tables, 1, vec![later(1, "web", 5_000)]).unwrap();
        for host in ["db", "", "web2", "we"] {
            assert!(add(&mut tables, 1, vec![later(2, host, 6_000)]).is_err(), "{host}");
            let error = tables.admits(1, host, "etc").unwrap_err();
            assert!(error.to_string().contains("host 'web'"), "{error}");
        }
        // The time of another host with the same set keeps nobody out.
        add(&mut tables, 2, vec![later(3, "db", 2_000)]).unwrap();
        assert!(add(&mut tables, 1, vec![later(4, "web", 4_999)]).is_err());
        assert!(add(&mut tables, 1, vec![later(5, "web", 7_000), later(6, "web", 6_999)]).is_err());
        add(&mut tables, 1, vec![later(5, "web", 7_000), later(6, "web", 7_000)]).unwrap();
    }
}
