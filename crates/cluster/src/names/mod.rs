//! Names of volumes and of objects that were put, and records of what is being filled or deleted.
//!
//! A volume or object that is being filled or deleted has no name. The shard of the name that it
//! will have, or had, holds a record of it, by its number. One operation changes the name and the
//! record, so that no volume or object is ever without both. [`rename`] has the steps by which one
//! gets another name.

mod rename;
mod shard;

use std::collections::BTreeMap;

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ObjectName, Read, ReadPart, Refusal, Write},
};

use self::{
    rename::Renames,
    shard::{
        ARRIVING, COUNT, LEFT, NAME, Pairs, RECORD, STEPS, name_key, name_value, one_more,
        shard_of, shards, valid, values,
    },
};
use crate::{
    format::{
        catalogue::{Named, VOLUME_MAX, What},
        corrupt, key,
        moving::Moving,
    },
    kernel::{Fate, Kernel, Operation, Outcome},
    replies::failed,
    rules::Rule,
    volume::header,
};

/// The lock that a session holds while it fills or deletes a volume or object without a name.
pub(crate) const FILL: &str = "fill";

/// Most decisions about one record; after them the session reports an error.
const RECORD_DECISIONS: u32 = 1000;

/// Most listings of all names; each after the first follows a rename during the one before.
const LISTINGS: u32 = 32;

/// Keys of each shard that a page of names reads: with 256 shards 4 MB.
const SHARD_KEYS: usize = 64;

/// Names of a page in a sealed store, for which all names are looked through: 10 MB.
const SEALED_PAGE: usize = 65_536;

/// Refuses a size that no volume may have.
pub(crate) fn valid_size(bytes: u64) -> Result<()> {
    if !bytes.is_multiple_of(4096) || bytes == 0 || bytes > VOLUME_MAX {
        return Err(Error::new(
            Kind::InvalidInput,
            "the size of a volume is a multiple of 4096, and 128 TiB at most",
        ));
    }
    Ok(())
}

/// What the shards of names hold beside the names.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// Records of volumes and objects that are being filled or deleted, with their shards.
    pub(crate) records: Vec<(ObjectName, Record)>,
    /// The new names of renames that are not finished.
    arrivals: Vec<String>,
    /// The departures of renames that are not finished, with their shards.
    departures: Vec<(ObjectName, Moving)>,
}

impl Unfinished {
    /// Learns what a key of a shard says.
    fn learn(
        &mut self,
        kernel: &Kernel,
        shard: &ObjectName,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        match key.split_first() {
            Some((&RECORD, _)) => {
                let record = Record::decode(value)?;
                // A record under another number could never be removed.
                if key != key::numbered(RECORD, record.named.id) {
                    return Err(corrupt("a record in the catalogue stands under another number"));
                }
                self.records.push((shard.clone(), record));
            }
            Some((&ARRIVING, name)) => {
                let name = std::str::from_utf8(name).map_err(|_| {
                    corrupt("a name in the catalogue that is being changed is damaged")
                })?;
                // There it could never be removed.
                if *shard != shard_of(kernel, name) {
                    return Err(elsewhere());
                }
                self.arrivals.push(name.to_owned());
            }
            Some((&LEFT, _)) => {
                let departure = Moving::decode(value)?;
                if key != shard::left_key(departure.named.id) {
                    let what = "a departure in the catalogue stands under another number";
                    return Err(corrupt(what));
                }
                self.departures.push((shard.clone(), departure));
            }
            _ => {}
        }
        Ok(())
    }
}

/// What a listing found.
#[derive(Default)]
struct Found {
    names: Vec<(String, Named)>,
    /// Names with an arrival, and its value.
    arrivals: Vec<(String, Vec<u8>)>,
    /// How many steps of renames each shard had counted; nothing for none.
    steps: Vec<Vec<u8>>,
}

fn elsewhere() -> Error {
    corrupt("a name in the catalogue stands where it does not belong")
}

/// The same error, which says where in the catalogue the damage is.
fn at_key(shard: &ObjectName, key: &[u8], error: Error) -> Error {
    error.context(format!("key '{}' of metadata object {}", key.escape_ascii(), shard.name))
}

/// What a look through the names says to its caller.
pub(crate) enum Told<'a> {
    /// The look begins anew, because of a rename: what was told before does not count.
    Anew,
    /// A name, and the volume or object that it stands for.
    Name(&'a str, &'a Named),
}

/// Some names in their order.
#[derive(Clone, Debug, Default)]
pub struct NamesPage {
    /// The names with what they stand for.
    pub names: Vec<(String, Named)>,
    /// The name behind which the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// In place of who fills it: a layer that stays.
const KEPT: &str = "@";

/// In place of who fills it: a volume that is being received. It stays when the session that works on it ends.
const RECEIVED: &str = "&";

/// What becomes of what a name stood for, when the name is given to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Old {
    /// It is deleted.
    Goes,
    /// It stays, as a layer.
    Stays,
}

/// The fate of a name that a session gives up to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// It was given all the same.
    Done,
    /// It is not given any more.
    Refused,
    /// It may be given at any time, or was.
    Unknown,
}

/// A volume or object that is being filled or deleted, or a layer that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) named: Named,
    /// The identity of the session that fills it; empty while it is being deleted, `@` for a layer that
    /// stays, and `&` for a volume that is being received.
    pub(crate) filler: String,
}

impl Record {
    /// True for a layer that stays.
    pub(crate) fn is_kept(&self) -> bool {
        self.filler == KEPT
    }

    /// True for a volume that is being received.
    pub(crate) fn is_received(&self) -> bool {
        self.filler == RECEIVED
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        [self.named.encode_plain(), self.filler.as_bytes().to_vec()].concat()
    }

    fn decode(value: &[u8]) -> Result<Record> {
        let (named, filler) = Named::decode_plain(value)?;
        Ok(Record { named, filler: String::from_utf8_lossy(filler).into_owned() })
    }
}

/// Adds a record. The operation compares how many records the shard ever had, so that a late copy
/// does not bring the record back.
struct AddedRecord<'a> {
    kernel: &'a Kernel,
    shard: ObjectName,
    record: &'a Record,
}

impl AddedRecord<'_> {
    fn key(&self) -> Vec<u8> {
        key::numbered(RECORD, self.record.named.id)
    }
}

/// The shard's count and the record, where they exist; `None` without a shard.
type SeenRecord = Option<Pairs>;

impl Operation<SeenRecord> for AddedRecord<'_> {
    fn decisions(&self) -> u32 {
        RECORD_DECISIONS
    }

    fn look(&mut self) -> Result<SeenRecord, Refusal> {
        values(self.kernel, &self.shard, vec![COUNT.to_vec(), self.key()])
    }

    fn decide(&mut self, seen: &SeenRecord) -> Result<Option<Write>, Refusal> {
        let (key, pairs) = (self.key(), seen.as_deref().unwrap_or_default());
        if pairs.iter().any(|(found, _)| *found == key) {
            return Ok(None);
        }
        let count = pairs.first().map(|(_, value)| value.clone()).unwrap_or_default();
        let next = one_more(&count);
        let guards = match seen {
            Some(_) => vec![Guard::Exists, Guard::Omap(COUNT.to_vec(), count)],
            None => vec![Guard::Absent],
        };
        let pairs = vec![(key, self.record.encode()), (COUNT.to_vec(), next)];
        let changes = vec![Change::SetOmap(pairs)];
        Ok(Some(Write { object: self.shard.clone(), guards, changes }))
    }

    /// The next decision sees whether the record exists.
    fn resolve(&self, _: &SeenRecord) -> Fate {
        Fate::Overtaken
    }
}

/// Changes the value of a name.
struct NameChange<'a> {
    kernel: &'a Kernel,
    object: ObjectName,
    name: &'a str,
    /// The value that the name gets; `None` to remove it.
    wanted: Option<Vec<u8>>,
    /// The value before the change.
    old: Option<&'a Named>,
    /// A try had no reply, and may be on its way.
    in_doubt: bool,
}

/// The value of a name. Where the change was to remove the name, and the name is gone: whether the
/// volume or object that it stood for has a record.
type SeenName = (Option<Vec<u8>>, bool);

impl Operation<SeenName> for NameChange<'_> {
    fn decisions(&self) -> u32 {
        1
    }

    fn look(&mut self) -> Result<SeenName, Refusal> {
        self.in_doubt = true;
        let now = name_value(self.kernel, self.name)?;
        let gone = now.is_none() && self.wanted.is_none();
        let recorded = match self.old.filter(|_| gone) {
            Some(old) => {
                let record = ReadPart::Keys(vec![key::numbered(RECORD, old.id)]);
                !self.kernel.read_one(&self.object, vec![record])?.pairs(0).0.is_empty()
            }
            None => gone,
        };
        Ok((now, recorded))
    }

    /// A session never undoes another session's change: the caller gets an error.
    fn decide(&mut self, _: &SeenName) -> Result<Option<Write>, Refusal> {
        Ok(None)
    }

    fn resolve(&self, (now, recorded): &SeenName) -> Fate {
        if *now == self.wanted && (now.is_some() || *recorded) {
            Fate::Applied
        } else {
            Fate::Unchanged
        }
    }

    /// Without the shard nothing is left to decide from.
    fn looks_after(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Mismatch)
    }
}

/// The names of a store.
pub(crate) struct Names<'k> {
    kernel: &'k Kernel,
}

impl<'k> Names<'k> {
    /// The names of the kernel's store.
    pub(crate) fn of(kernel: &'k Kernel) -> Names<'k> {
        Names { kernel }
    }

    /// Looks up a name.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Named>> {
        name_value(self.kernel, name)
            .and_then(|value| Renames::of(self.kernel).resolve(name, value))
            .map_err(|refusal| {
                failed(format_args!("name '{}' can't be looked up", name.escape_debug()), refusal)
            })
    }

    /// Looks up a name that the caller is about to change, after finishing any rename to it.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn find_finished(&self, name: &str) -> Result<Option<Named>> {
        Renames::of(self.kernel).finish(name).map_err(|refusal| {
            failed(format_args!("name '{}' can't be looked up", name.escape_debug()), refusal)
        })
    }

    /// Gives a volume or an object another name.
    ///
    /// # Errors
    /// `NotFound`: there is no such name. `Exists`: the new name is taken. `InvalidInput`: it is
    /// no name. `Busy`: another session changed the names meanwhile; the rename may be done or not.
    pub(crate) fn rename(&self, what: What, name: &str, new_name: &str) -> Result<()> {
        Renames::of(self.kernel).rename(what, name, new_name)
    }

    /// All names with their values, sorted; those of one kind when `what` says so. Memory is taken
    /// for what is returned, and for a few pages of keys.
    ///
    /// A listing reads the shards at different moments. A volume or object that left its old name
    /// after the shard of the new one was read would be missing. Each shard counts the steps of
    /// renames, and the session lists again when a count has changed.
    ///
    /// # Errors
    /// `Busy`: other sessions renamed during every listing. Otherwise the store's.
    pub(crate) fn all(&self, what: Option<What>) -> Result<Vec<(String, Named)>> {
        self.chosen(&mut |told| {
            matches!(told, Told::Name(_, named) if what.is_none_or(|what| named.what == what))
        })
    }

    /// As [`all`](Self::all), of the names for which `choose` gives true. Every name is told to it, so
    /// that who counts names needs no memory for them.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn chosen(
        &self,
        choose: &mut dyn FnMut(Told<'_>) -> bool,
    ) -> Result<Vec<(String, Named)>> {
        let say = |refusal| failed("the names can't be read", refusal);
        let shards = shards(self.kernel);
        let mut before = self.steps(&shards).map_err(say)?;
        for _ in 0..LISTINGS {
            choose(Told::Anew);
            let found = self.look_through(&shards, choose).map_err(say)?;
            let steps = found.steps.clone();
            if steps == before || !self.kernel.keeps(Rule::NamesListedUntilStable) {
                let arrives = !found.arrivals.is_empty();
                let all = self.listed(found, choose).map_err(say)?;
                // What had arrived may have been renamed again before the session looked at it.
                if !arrives
                    || !self.kernel.keeps(Rule::NamesListedUntilStable)
                    || self.counted_steps(&shards).map_err(say)? == steps
                {
                    return Ok(all);
                }
            }
            before = steps;
        }
        Err(say(Refusal::Busy))
    }

    /// The names behind `after`, in their order, as many as a few thousand keys give; those of one kind
    /// when `what` says so. A page is of one moment. Of what is renamed between two pages neither name
    /// may be in them, or both.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn page(&self, what: Option<What>, after: &str) -> Result<NamesPage> {
        let wanted = |named: &Named| what.is_none_or(|what| named.what == what);
        if self.kernel.is_sealed() {
            return self.sealed_page(&wanted, after);
        }
        let say = |refusal| failed("the names can't be read", refusal);
        let shards = shards(self.kernel);
        let mut before = self.steps(&shards).map_err(say)?;
        for _ in 0..LISTINGS {
            let (found, end) = self.look_behind(&shards, after, &wanted).map_err(say)?;
            let steps = found.steps.clone();
            if steps == before {
                let arrives = !found.arrivals.is_empty();
                let choose = &mut |told: Told<'_>| matches!(told, Told::Name(..));
                let names = self.listed(found, choose).map_err(say)?;
                if !arrives || self.counted_steps(&shards).map_err(say)? == steps {
                    return Ok(NamesPage { names, next: end });
                }
            }
            before = steps;
        }
        Err(say(Refusal::Busy))
    }

    /// The keys of sealed names have an order of their own: a page takes a look at all names, and keeps
    /// the first ones.
    fn sealed_page(&self, wanted: &dyn Fn(&Named) -> bool, after: &str) -> Result<NamesPage> {
        let (mut first, mut more) = (BTreeMap::new(), false);
        self.chosen(&mut |told| {
            match told {
                Told::Anew => {
                    first.clear();
                    more = false;
                }
                Told::Name(name, named) if name > after && wanted(named) => {
                    first.insert(name.to_owned(), *named);
                    if first.len() > SEALED_PAGE {
                        first.pop_last();
                        more = true;
                    }
                }
                Told::Name(..) => {}
            }
            false
        })?;
        let next = first.keys().next_back().filter(|_| more).cloned();
        Ok(NamesPage { names: first.into_iter().collect(), next })
    }

    /// Reads some keys of each shard behind a name, and gives the names up to the first place behind
    /// which a shard was not read; that place, if there is one.
    fn look_behind(
        &self,
        shards: &[ObjectName],
        after: &str,
        wanted: &dyn Fn(&Named) -> bool,
    ) -> Result<(Found, Option<String>), Refusal> {
        let read = |shard: &ObjectName| Read {
            object: shard.clone(),
            parts: vec![
                ReadPart::Page(name_key(after), SHARD_KEYS),
                ReadPart::Keys(vec![STEPS.to_vec()]),
            ],
        };
        let answers = self.kernel.read_all(&shards.iter().map(read).collect::<Vec<_>>());
        let mut found = Found::default();
        let mut end: Option<String> = None;
        for (shard, answer) in answers.into_iter().enumerate() {
            let answer = match answer {
                Err(Refusal::Missing) => {
                    found.steps.push(Vec::new());
                    continue;
                }
                other => other?,
            };
            let steps = answer.pairs(1).0.first().map(|(_, value)| value.clone());
            found.steps.push(steps.unwrap_or_default());
            let (pairs, more) = answer.pairs(0);
            for (key, value) in pairs {
                self.learn(
                    shards,
                    shard,
                    key,
                    value,
                    &mut found,
                    &mut |told| matches!(told, Told::Name(_, named) if wanted(named)),
                )?;
            }
            let last = pairs.last().filter(|_| more).and_then(|(key, _)| key.strip_prefix(&[NAME]));
            if let Some(last) = last {
                let last = String::from_utf8_lossy(last).into_owned();
                end = Some(end.map_or(last.clone(), |end| end.min(last)));
            }
        }
        if let Some(end) = &end {
            found.names.retain(|(name, _)| name <= end);
            found.arrivals.retain(|(name, _)| name <= end);
        }
        Ok((found, end))
    }

    /// How many steps of renames each shard counted. In a store in which nothing was ever renamed
    /// they are known without a read.
    fn steps(&self, shards: &[ObjectName]) -> Result<Vec<Vec<u8>>, Refusal> {
        if !self.kernel.format().renames {
            return Ok(vec![Vec::new(); shards.len()]);
        }
        self.counted_steps(shards)
    }

    /// The same, always read.
    fn counted_steps(&self, shards: &[ObjectName]) -> Result<Vec<Vec<u8>>, Refusal> {
        let read = |shard: &ObjectName| Read {
            object: shard.clone(),
            parts: vec![ReadPart::Keys(vec![STEPS.to_vec()])],
        };
        let answers = self.kernel.read_all(&shards.iter().map(read).collect::<Vec<_>>());
        let steps = answers.into_iter().map(|answer| match answer {
            Ok(answer) => Ok(answer.pairs(0).0.first().map(|(_, value)| value.clone())),
            Err(Refusal::Missing) => Ok(None),
            Err(refusal) => Err(refusal),
        });
        steps.map(|value| value.map(Option::unwrap_or_default)).collect()
    }

    /// Reads the names of all shards. The count of a shard's steps comes behind its names.
    fn look_through(
        &self,
        shards: &[ObjectName],
        choose: &mut dyn FnMut(Told<'_>) -> bool,
    ) -> Result<Found, Refusal> {
        let mut found = Found::default();
        found.steps.resize(shards.len(), Vec::new());
        self.kernel.pages_of(shards, &[], |shard, pairs| {
            for (key, value) in pairs {
                if key == STEPS {
                    found.steps[shard].clone_from(value);
                }
                self.learn(shards, shard, key, value, &mut found, choose)?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Learns a name from a key of a shard; nothing from other keys.
    fn learn(
        &self,
        shards: &[ObjectName],
        shard: usize,
        key: &[u8],
        value: &[u8],
        found: &mut Found,
        choose: &mut dyn FnMut(Told<'_>) -> bool,
    ) -> Result<(), Refusal> {
        let damaged = |error| Refusal::Failed(at_key(&shards[shard], key, error));
        let Some(name) = key.strip_prefix(&[NAME]) else { return Ok(()) };
        let name = String::from_utf8_lossy(name).into_owned();
        if shard::number_of(self.kernel, &name) != shard as u64 {
            return Err(damaged(elsewhere()));
        }
        if Moving::is_one(value) {
            Moving::decode(value).map_err(damaged)?;
            found.arrivals.push((name, value.to_vec()));
            return Ok(());
        }
        let named = Named::decode(value).map_err(damaged)?;
        if choose(Told::Name(&name, &named)) {
            found.names.push((name, named));
        }
        Ok(())
    }

    /// The names that were found. A volume or object that was renamed while the session read them
    /// may be there under two names; the listing keeps the one that it got last.
    fn listed(
        &self,
        found: Found,
        choose: &mut dyn FnMut(Told<'_>) -> bool,
    ) -> Result<Vec<(String, Named)>, Refusal> {
        let Found { names: mut all, arrivals, steps } = found;
        for (name, value) in arrivals {
            if let Some(named) = Renames::of(self.kernel).resolve(&name, Some(value))?
                && choose(Told::Name(&name, &named))
            {
                all.push((name, named));
            }
        }
        if steps.iter().any(|steps| !steps.is_empty()) {
            let mut newest: BTreeMap<u64, (String, Named)> = BTreeMap::new();
            let count = |named: &Named| (named.moves, named.pieces);
            for (name, named) in all {
                let older =
                    newest.get(&named.id).is_some_and(|(_, one)| count(one) < count(&named));
                if older || !newest.contains_key(&named.id) {
                    newest.insert(named.id, (name, named));
                }
            }
            all = newest.into_values().collect();
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(all)
    }

    /// Gives every record to `tell`, and holds none.
    pub(crate) fn each_record(&self, tell: &mut dyn FnMut(&Record)) -> Result<()> {
        let shards = shards(self.kernel);
        let mut learnt = Unfinished::default();
        self.kernel
            .pages_of(&shards, &[RECORD], |shard, keys| {
                for (key, value) in keys {
                    learnt
                        .learn(self.kernel, &shards[shard], key, value)
                        .map_err(|error| Refusal::Failed(at_key(&shards[shard], key, error)))?;
                }
                let Unfinished { records, .. } = std::mem::take(&mut learnt);
                records.iter().for_each(|(_, record)| tell(record));
                Ok(())
            })
            .map_err(|refusal| failed("the names can't be read", refusal))
    }

    /// Reads the records, and the renames that are not finished.
    pub(crate) fn unfinished(&self) -> Result<Unfinished> {
        let shards = shards(self.kernel);
        let mut all = Unfinished::default();
        self.kernel
            .pages_of(&shards, &[RECORD], |shard, keys| {
                let learn = |(key, value): &(Vec<u8>, Vec<u8>)| {
                    let learnt = all.learn(self.kernel, &shards[shard], key, value);
                    learnt.map_err(|error| at_key(&shards[shard], key, error))
                };
                keys.iter().try_for_each(learn).map_err(Refusal::Failed)
            })
            .map_err(|refusal| failed("the names can't be read", refusal))?;
        Ok(all)
    }

    /// Finishes renames; false when there was none.
    pub(crate) fn finish_renames(&self, unfinished: &Unfinished) -> Result<bool> {
        let say = |refusal| failed("a rename can't be finished", refusal);
        if !self.kernel.keeps(Rule::HalfRenamesFinished) {
            return Ok(false);
        }
        let (renames, mut any) = (Renames::of(self.kernel), false);
        for name in &unfinished.arrivals {
            any |= renames.finish_arrival(name).map_err(say)?;
        }
        for (shard, departure) in &unfinished.departures {
            any |= renames.finish_departure(shard, departure).map_err(say)?;
        }
        Ok(any)
    }

    /// Records that this session fills a volume or object that has no name yet.
    pub(crate) fn begin(&self, name: &str, what: What) -> Result<Record> {
        self.begin_sized(name, what, 0)
    }

    /// The same of a volume whose objects come before its name does: whoever deletes it looks for as many as so many
    /// bytes have.
    pub(crate) fn begin_sized(&self, name: &str, what: What, bytes: u64) -> Result<Record> {
        valid(name)?;
        let named = Named { what, id: self.kernel.new_id()?, bytes, pieces: 0, moves: 0 };
        let record = Record { named, filler: self.kernel.store().identity() };
        let begun = || -> Result<(), Refusal> {
            // While this session holds the lock, no other one treats the record as abandoned. If
            // the request had no reply, the session that does so fences this one first.
            let lease = self.kernel.settings().lease;
            match self.kernel.lock_until_answered(&header::name(named.id), FILL, lease) {
                Ok(()) | Err(Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
            let shard = shard_of(self.kernel, name);
            let mut added = AddedRecord { kernel: self.kernel, shard, record: &record };
            self.kernel.carry_out(&mut added).map(|_| ())
        };
        begun().map_err(|refusal| {
            failed(format_args!("'{}' can't be made", name.escape_debug()), refusal)
        })?;
        Ok(record)
    }

    /// Renews the lock of a session that fills or deletes a volume or object. A lost reply is no
    /// error.
    pub(crate) fn keep_filling(&self, id: u64) -> Result<(), Refusal> {
        let (cookie, lease) = (self.kernel.cookie(), self.kernel.settings().lease);
        match self.kernel.store().lock(&header::name(id), FILL, &cookie, Some(lease)) {
            Err(Refusal::Unknown) => Ok(()),
            other => other,
        }
    }

    /// Gives `new` the name, in place of `old`, which is deleted from now on.
    ///
    /// # Errors
    /// `Mismatch` when the name stands for something else.
    pub(crate) fn change(
        &self,
        name: &str,
        old: Option<&Named>,
        new: Option<&Named>,
    ) -> Result<(), Refusal> {
        self.change_with(name, old.map(|old| (old, Old::Goes)), new)
    }

    /// The same, where what the name stood for may stay.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub(crate) fn change_with(
        &self,
        name: &str,
        old: Option<(&Named, Old)>,
        new: Option<&Named>,
    ) -> Result<(), Refusal> {
        let record = new.map(|new| self.own_record(new));
        self.change_recorded(name, old, new.zip(record.as_ref()), None)
    }

    /// Gives a name to a number that this session prepared; what was received may become a layer meanwhile.
    ///
    /// # Errors
    /// As [`change_recorded`](Self::change_recorded).
    pub(crate) fn change_over(
        &self,
        name: &str,
        old: Option<(&Named, Old)>,
        new: &Named,
        layer: Option<(&Record, &Named)>,
    ) -> Result<(), Refusal> {
        self.change_recorded(name, old, Some((new, &self.own_record(new))), layer)
    }

    /// The record of a number that this session fills, and gives no size to before its name.
    fn own_record(&self, new: &Named) -> Record {
        Record {
            named: Named { bytes: 0, pieces: 0, ..*new },
            filler: self.kernel.store().identity(),
        }
    }

    /// The same for a number with this record, and where what was received becomes a `layer` that stays: the record
    /// that it has, and what it holds.
    ///
    /// # Errors
    /// As [`change`](Self::change); `Mismatch` also when the record of the layer is another one.
    pub(crate) fn change_recorded(
        &self,
        name: &str,
        old: Option<(&Named, Old)>,
        new: Option<(&Named, &Record)>,
        layer: Option<(&Record, &Named)>,
    ) -> Result<(), Refusal> {
        let (new, record) = (new.map(|(new, _)| new), new.map(|(_, record)| record));
        let filler = match old {
            Some((_, Old::Stays)) => KEPT.to_owned(),
            _ => String::new(),
        };
        let old = old.map(|(old, _)| old);
        let key = name_key(name);
        let mut changes = Vec::new();
        match new {
            Some(new) => {
                changes.push(Change::SetOmap(vec![(key.clone(), new.encode())]));
                if old.is_none_or(|old| old.id != new.id) {
                    changes.push(Change::DropOmap(vec![key::numbered(RECORD, new.id)]));
                }
            }
            None => changes.push(Change::DropOmap(vec![key.clone()])),
        }
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.id != old.id)) {
            let record = Record { named: *old, filler };
            changes.push(Change::SetOmap(vec![(key::numbered(RECORD, old.id), record.encode())]));
        }
        let mut guards = vec![Guard::Exists];
        if self.kernel.keeps(Rule::NameCompared) {
            guards.push(Guard::Omap(key, old.map_or_else(Vec::new, Named::encode)));
        }
        if let Some((new, record)) =
            new.zip(record).filter(|(new, _)| old.is_none_or(|old| old.id != new.id))
        {
            // A session that judged the record abandoned has marked it as deleted, or removed it.
            guards.push(Guard::Omap(key::numbered(RECORD, new.id), record.encode()));
        }
        if let Some((before, holds)) = layer {
            let key = key::numbered(RECORD, holds.id);
            let stays = Record { named: *holds, filler: KEPT.to_owned() };
            guards.push(Guard::Omap(key.clone(), before.encode()));
            changes.push(Change::SetOmap(vec![(key, stays.encode())]));
        }
        let object = shard_of(self.kernel, name);
        let write = Write { object: object.clone(), guards, changes };
        let wanted = new.map(Named::encode);
        let mut change =
            NameChange { kernel: self.kernel, object, name, wanted, old, in_doubt: false };
        match self.kernel.carry_out_decided(&mut change, write) {
            Ok(Outcome::Applied | Outcome::Found) => Ok(()),
            Ok(Outcome::GivenUp) => Err(Refusal::Mismatch),
            // Nothing keeps the other try from the name while nobody changes it.
            Err(Refusal::Full) if change.in_doubt && new.is_none() => {
                let why = format!(
                    "{}; a try before it had no answer, and may still delete it",
                    Refusal::Full
                );
                Err(Refusal::Failed(Error::new(Kind::NoSpace, why)))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Marks a layer as deleted; false when there is no such layer that stays.
    pub(crate) fn let_go(&self, id: u64) -> Result<bool, Refusal> {
        let records = self.unfinished().map_err(Refusal::Failed)?.records;
        let kept = records.into_iter().find(|(_, one)| one.named.id == id && one.is_kept());
        match &kept {
            Some((shard, record)) => self.abandon(shard, record).map(|_| true),
            None => Ok(false),
        }
    }

    /// Marks a record as deleted, because the session that filled it is gone; false when it is another one by now.
    pub(crate) fn abandon(&self, shard: &ObjectName, record: &Record) -> Result<bool, Refusal> {
        self.refill(shard, record, "")
    }

    /// Changes who fills the number of a record; false when it is another record by now.
    fn refill(&self, shard: &ObjectName, record: &Record, filler: &str) -> Result<bool, Refusal> {
        let key = key::numbered(RECORD, record.named.id);
        let next = Record { filler: filler.to_owned(), ..record.clone() };
        let guards = vec![Guard::Exists, Guard::Omap(key.clone(), record.encode())];
        match self.kernel.until_answered(&Write {
            object: shard.clone(),
            guards,
            changes: vec![Change::SetOmap(vec![(key, next.encode())])],
        }) {
            Ok(_) => Ok(true),
            Err(Refusal::Mismatch) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// What this session fills is being received from now on: it stays when the session ends, until it gets a name
    /// or is given up. False when somebody else has deleted it.
    pub(crate) fn receives(&self, name: &str, record: &Record) -> Result<Option<Record>, Refusal> {
        let (shard, next) =
            (shard_of(self.kernel, name), Record { filler: RECEIVED.to_owned(), ..record.clone() });
        // After a lost reply the record may be the new one already.
        let done = self.refill(&shard, record, RECEIVED)?
            || self.recorded(name, record.named.id)?.as_ref() == Some(&next);
        Ok(done.then_some(next))
    }

    /// The shard that a name belongs to.
    pub(crate) fn shard(&self, name: &str) -> ObjectName {
        shard_of(self.kernel, name)
    }

    /// The record of a number in the shard of a name.
    pub(crate) fn recorded(&self, name: &str, id: u64) -> Result<Option<Record>, Refusal> {
        self.recorded_in(&shard_of(self.kernel, name), id)
    }

    /// The record of a number in a shard.
    pub(crate) fn recorded_in(
        &self,
        shard: &ObjectName,
        id: u64,
    ) -> Result<Option<Record>, Refusal> {
        let key = key::numbered(RECORD, id);
        let pairs = values(self.kernel, shard, vec![key])?;
        let value = pairs.and_then(|pairs| pairs.into_iter().next());
        value.map(|(_, value)| Record::decode(&value).map_err(Refusal::Failed)).transpose()
    }

    /// Removes a record when nothing is left of its volume or object.
    pub(crate) fn forget(&self, shard: &ObjectName, id: u64) -> Result<(), Refusal> {
        let op = Write {
            object: shard.clone(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(vec![key::numbered(RECORD, id)])],
        };
        self.kernel.until_answered(&op).map(|_| ())
    }

    /// Makes an empty volume.
    ///
    /// # Errors
    /// `Exists`: the name is in use. `InvalidInput`: the name or the size is not valid. `NoSpace`:
    /// the store is full.
    pub(crate) fn create_volume(&self, name: &str, bytes: u64) -> Result<()> {
        valid_size(bytes)?;
        valid(name)?;
        let taken =
            || Error::new(Kind::Exists, format!("'{}' is there already", name.escape_debug()));
        if self.find_finished(name)?.is_some() {
            return Err(taken());
        }
        let record = self.begin(name, What::Volume)?;
        let named = Named { bytes, ..record.named };
        match self.change(name, None, Some(&named)) {
            Ok(()) => {
                self.unlock_filled(named.id);
                Ok(())
            }
            Err(refusal) => {
                self.give_up(name, &named);
                Err(match refusal {
                    Refusal::Mismatch => taken(),
                    refusal => failed(
                        format_args!("volume '{}' can't be made", name.escape_debug()),
                        refusal,
                    ),
                })
            }
        }
    }

    /// Deletes what this session was filling and did not give a name to. A session that goes on must do so:
    /// whoever finds the record otherwise shuts the session out. A name that may still be given is refused
    /// from then on, unless that was done before, or nobody knows.
    pub(crate) fn give_up(&self, name: &str, named: &Named) -> Given {
        self.give_up_recorded(name, &self.own_record(named))
    }

    /// The same of what has this record.
    pub(crate) fn give_up_recorded(&self, name: &str, record: &Record) -> Given {
        let (shard, named) = (shard_of(self.kernel, name), &record.named);
        let given = match self.abandon(&shard, record) {
            Ok(true) => Given::Refused,
            Ok(false) => self.was_given(&shard, name, named.id),
            // It is as after a crash.
            Err(_) => Given::Unknown,
        };
        self.unlock_filled(named.id);
        given
    }

    /// Looks what became of a name that was to be given to a number whose record is another one by now.
    fn was_given(&self, shard: &ObjectName, name: &str, id: u64) -> Given {
        let (key, record) = (name_key(name), key::numbered(RECORD, id));
        let parts = vec![ReadPart::Keys(vec![key.clone(), record.clone()])];
        let Ok(read) = self.kernel.read_one(shard, parts) else { return Given::Unknown };
        let value = |key: &Vec<u8>| {
            let found = read.pairs(0).0.iter().find(|(found, _)| found == key);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        if Named::decode(&value(&key)).is_ok_and(|named| named.id == id) {
            return Given::Done;
        }
        let deleted = |record: Record| record.named.id == id && record.filler.is_empty();
        match Record::decode(&value(&record)).is_ok_and(deleted) {
            true => Given::Refused,
            // It may have been given, and changed again.
            false => Given::Unknown,
        }
    }

    pub(crate) fn unlock_filled(&self, id: u64) {
        // If this fails, the lock ends with its lease.
        let _ = self.kernel.store().unlock(&header::name(id), FILL, &self.kernel.cookie());
    }

    /// Removes a name, of this number if one is given. Its volume or object is then deleted step by step, here
    /// or by any worker.
    ///
    /// # Errors
    /// `NotFound`: there is no such name. `Busy`: the name changed meanwhile.
    pub(crate) fn delete(&self, name: &str, what: What, only: Option<u64>) -> Result<()> {
        let kind = if what == What::Volume { "volume" } else { "stream" };
        let Some(old) = self.find_finished(name)?.filter(|named| named.what == what) else {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no {kind} '{}'", name.escape_debug()),
            ));
        };
        let deleted = match only {
            Some(only) if only != old.id => Err(Refusal::Mismatch),
            _ => self.change(name, Some(&old), None),
        };
        deleted.map_err(|refusal| {
            failed(format_args!("{kind} '{}' can't be deleted", name.escape_debug()), refusal)
        })
    }
}
