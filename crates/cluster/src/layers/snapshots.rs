//! Snapshots, clones and rollbacks.
//!
//! The header of a volume has the table of its snapshots; a snapshot is there while the record of its
//! layer says that the layer stays. All of them are made in one way:
//!
//! | step | after a crash |
//! |---|---|
//! | a new number is recorded in the shard of the name, as of a volume that is being filled | a worker deletes it |
//! | the header of the new number gets its parent and its table | likewise |
//! | the parent knows its child | it knows of one that never came |
//! | one operation gives the name to the new number, and records what becomes of the old one | done |
//!
//! *Invariant:* the session that makes a snapshot, or rolls back, owns the volume. A session that takes
//! the volume over fences it first, and so does its last operation come in time or never.

use std::sync::Arc;

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, Refusal, Write},
};

use super::{
    below::{BORN, Below, LAYERS_MAX, PARENT, Parent, link, may_have_more, record_stamps},
    table::{SNAPSHOTS_MAX, Snapshot, kept_layers, snapshots_of, snapshots_of_one},
};
use crate::{
    format::catalogue::{Named, What},
    kernel::Kernel,
    names::{Given, Names, Old, Record},
    replies::failed,
    rules::Rule,
    session::Session,
    volume::{
        GoesOn, Mode, Volume, complete, header, owner, parse_owner, resign, settles,
        trims_first::{Wait, apply_all},
    },
};

fn missing(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no snapshot '{}'", name.escape_debug()))
}

/// The volume and the snapshot that a name is made of.
pub(super) fn parts(name: &str) -> Result<(&str, &str)> {
    name.rsplit_once('@').filter(|(volume, own)| !volume.is_empty() && !own.is_empty()).ok_or_else(
        || {
            let name = name.escape_debug();
            Error::new(Kind::InvalidInput, format!("'{name}' names no snapshot: write VOLUME@NAME"))
        },
    )
}

fn may_come(name: &str) -> Error {
    let name = name.escape_debug();
    let what =
        format!("a write to volume '{name}' failed and may still come: restart its server first");
    Error::new(Kind::Busy, what)
}

/// The result of a step for a volume that is attached.
pub(crate) struct Moved {
    /// Its new number, where it has one.
    pub(crate) to: Option<Named>,
    pub(crate) done: Result<()>,
}

/// The snapshots of a store.
pub struct Snapshots<'s> {
    session: &'s Arc<Session>,
    /// The volume that gets another number, and whose clients go on with that.
    live: Option<&'s Volume>,
    /// How long it waits for long trims.
    wait: Wait<'s>,
    /// Hears of the number that a volume gets before its name stands for it.
    entering: &'s dyn Fn(u64),
}

/// Records in the format that volumes have layers, and that their parents have stamps.
fn record_layers(kernel: &Kernel) -> Result<(), Refusal> {
    if kernel.format().layers {
        return record_stamps(kernel);
    }
    kernel.record_feature(|format| {
        let both = format.layers && format.stamped_parents;
        (format.layers, format.stamped_parents) = (true, true);
        both
    })
}

impl<'s> Snapshots<'s> {
    /// The snapshots of the session's store.
    #[must_use]
    pub fn of(session: &'s Arc<Session>) -> Snapshots<'s> {
        Snapshots { session, live: None, wait: Wait::unbounded(), entering: &|_| {} }
    }

    /// The same in a server, for one who asks whether to go on: steps over a volume wait for its long trims for a
    /// bounded time.
    #[must_use]
    pub fn while_goes_on(self, goes_on: GoesOn<'s>) -> Snapshots<'s> {
        Snapshots { wait: Wait::served(goes_on), ..self }
    }

    /// The same, for a volume whose long trims were waited for already. `entering` hears of the number that the volume
    /// gets, before others can find it.
    pub(crate) fn alone(self, goes_on: GoesOn<'s>, entering: &'s dyn Fn(u64)) -> Snapshots<'s> {
        Snapshots { wait: Wait::alone(goes_on), entering, ..self }
    }

    fn kernel(&self) -> &'s Kernel {
        self.session.kernel()
    }

    /// All snapshots, by volume and time.
    ///
    /// # Errors
    /// The store's.
    pub fn all(&self) -> Result<Vec<Snapshot>> {
        let kept = kept_layers(self.kernel())?;
        if kept.is_empty() {
            return Ok(Vec::new());
        }
        snapshots_of(self.kernel(), &self.session.volumes()?, &kept)
    }

    /// Looks up a snapshot by its whole name, like `vm1@monday`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for what can't be the name of one; the store's.
    pub fn find(&self, name: &str) -> Result<Snapshot> {
        let (volume, own) = parts(name)?;
        let named = self.session.find(volume)?.filter(|named| named.what == What::Volume);
        let named = named.ok_or_else(|| missing(name))?;
        let all = snapshots_of_one(self.kernel(), volume, &named)?;
        all.into_iter().find(|snapshot| snapshot.name == own).ok_or_else(|| missing(name))
    }

    /// Attaches a snapshot, for reading.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`Volume::attach`].
    pub fn attach(&self, name: &str) -> Result<Volume> {
        let snapshot = self.find(name)?;
        Volume::attach_named(self.session, name, &snapshot.named(), Mode::Read)
    }

    /// Takes a snapshot of a volume that nobody writes to: `vm1@monday` is one of `vm1`. It holds what
    /// was acknowledged, and is durable on return.
    ///
    /// # Errors
    /// `NotFound`: there is no such volume. `Exists`: the snapshot is there. `Busy`: another server
    /// writes to the volume. `Unsupported`: the volume has as many as it may have. After another error
    /// of the store it is not known whether the snapshot was taken.
    pub fn take(&self, name: &str) -> Result<()> {
        let (volume, own) = parts(name)?;
        self.while_owned(volume, Old::Stays, |named, table| {
            self.take_over((name, volume, own), named, table).map(drop)
        })
    }

    /// Takes a snapshot of a volume that this session has attached for writing. The volume has another number
    /// afterwards, under which it is to be attached anew; its own is to be [left](Self::leave).
    pub(crate) fn take_of(&self, volume: &'s Volume, name: &str) -> Moved {
        Snapshots { live: Some(volume), ..*self }.take_live(volume, name)
    }

    fn take_live(&self, volume: &Volume, name: &str) -> Moved {
        let taken = parts(name).and_then(|(of, own)| {
            self.make_sure(volume)?;
            self.step(volume, of, Old::Stays, |named, table| {
                self.take_over((name, of, own), named, table)
            })
        });
        let (to, done) = match taken {
            Ok(to) => (Some(to), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.stays_with(volume, to.as_ref());
        Moved { to, done }
    }

    /// A volume that did not get another number may be deleted as before.
    fn stays_with(&self, volume: &Volume, to: Option<&Named>) {
        if to.is_none() {
            Names::of(self.kernel()).unlock_filled(volume.id());
        }
    }

    fn take_over(
        &self,
        (name, volume, own): (&str, &str, &str),
        named: &Named,
        mut table: Vec<Snapshot>,
    ) -> Result<Named> {
        if table.iter().any(|snapshot| snapshot.name == own) {
            let what = format!("snapshot '{}' exists already", name.escape_debug());
            return Err(Error::new(Kind::Exists, what));
        }
        if table.len() >= SNAPSHOTS_MAX {
            let what = format!("a volume has {SNAPSHOTS_MAX} snapshots at most");
            return Err(Error::new(Kind::Unsupported, what));
        }
        table.push(Snapshot {
            volume: volume.to_owned(),
            name: own.to_owned(),
            bytes: named.bytes,
            made: self.kernel().store().time(),
            id: named.id,
        });
        self.layer(volume, named, &table, Old::Stays)
    }

    /// Gives a volume that nobody writes to what one of its snapshots holds, and its size. All snapshots
    /// stay.
    ///
    /// # Errors
    /// As [`take`](Self::take); `NotFound` without the snapshot.
    pub fn roll_back(&self, name: &str) -> Result<()> {
        let (volume, own) = parts(name)?;
        self.while_owned(volume, Old::Goes, |named, table| {
            let to = table.iter().find(|snapshot| snapshot.name == own);
            let to = to.ok_or_else(|| missing(name))?;
            let new = self.prepare_over(volume, to, &table)?;
            self.give(volume, Some((named, Old::Goes)), &new)
        })
    }

    /// Makes a volume that holds what a snapshot, like `vm1@monday`, holds, or a volume that nobody
    /// writes to.
    ///
    /// # Errors
    /// `NotFound`: there is no such snapshot or volume. `Exists`: the new name is in use. `InvalidInput`: it
    /// is no name. `Busy`: the snapshot is being deleted, or another server writes to the volume. After
    /// another error of the store it is not known whether the volume was made.
    pub fn clone_volume(&self, of: &str, new_name: &str) -> Result<()> {
        self.must_be_free(new_name)?;
        if self.session.find(of)?.is_none_or(|named| named.what != What::Volume) && of.contains('@')
        {
            let new = self.prepare_over(new_name, &self.find(of)?, &[])?;
            return self.give(new_name, None, &new);
        }
        self.while_owned(of, Old::Goes, |named, table| {
            self.clone_over((of, new_name), named, &table, &mut None)
        })
    }

    /// Makes a volume that holds what a volume holds that this session has attached for writing. Where that one has
    /// another number afterwards, it is to be attached anew; its own is to be [left](Self::leave).
    pub(crate) fn clone_of(&self, volume: &'s Volume, of: &str, new_name: &str) -> Moved {
        Snapshots { live: Some(volume), ..*self }.clone_live(volume, of, new_name)
    }

    fn clone_live(&self, volume: &Volume, of: &str, new_name: &str) -> Moved {
        let mut to = None;
        let sure = self.must_be_free(new_name).and_then(|()| self.make_sure(volume));
        let done = sure.and_then(|()| {
            self.step(volume, of, Old::Goes, |named, table| {
                self.clone_over((of, new_name), named, &table, &mut to)
            })
        });
        self.stays_with(volume, to.as_ref());
        Moved { to, done }
    }

    fn must_be_free(&self, new_name: &str) -> Result<()> {
        match Names::of(self.kernel()).find_finished(new_name)? {
            None => Ok(()),
            Some(_) => {
                let what = format!("'{}' is there already", new_name.escape_debug());
                Err(Error::new(Kind::Exists, what))
            }
        }
    }

    /// Gives the volume another number, `to`, over the one that it has, and makes another volume over that one, too.
    fn clone_over(
        &self,
        (of, new_name): (&str, &str),
        named: &Named,
        table: &[Snapshot],
        to: &mut Option<Named>,
    ) -> Result<()> {
        let new = self.prepare(new_name, named, &[])?;
        if self.kernel().keeps(Rule::ClonedVolumeLeft) {
            // Both read the layer, until each has a map of its own.
            match self.layer(of, named, table, Old::Goes) {
                Ok(moved) => *to = Some(moved),
                Err(error) => {
                    Names::of(self.kernel()).give_up(new_name, &new);
                    return Err(error);
                }
            }
        }
        self.give(new_name, None, &new)
    }

    /// Deletes a snapshot. What only it holds is given back step by step, here or by any worker.
    ///
    /// # Errors
    /// `NotFound`; the store's.
    pub fn delete(&self, name: &str) -> Result<()> {
        let snapshot = self.find(name)?;
        let say = |refusal| {
            failed(format_args!("snapshot '{}' can't be deleted", name.escape_debug()), refusal)
        };
        let names = Names::of(self.kernel());
        if !names.let_go(snapshot.id).map_err(say)? {
            return Err(missing(name));
        }
        // The table may have it for a while: without the record it is none.
        let Some(volume) = self.session.find(&snapshot.volume)? else { return Ok(()) };
        let (key, value) = snapshot.pair();
        match self.kernel().until_answered(&Write {
            object: header::name(volume.id),
            guards: vec![Guard::Exists, Guard::Omap(key.clone(), value)],
            changes: vec![Change::DropOmap(vec![key])],
        }) {
            Ok(_) | Err(Refusal::Mismatch | Refusal::Missing) => Ok(()),
            Err(refusal) => Err(say(refusal)),
        }
    }

    /// Does something with a volume as its owner, all of whose trims have reached their objects. Its number is
    /// a layer afterwards, or is deleted.
    fn while_owned(
        &self,
        name: &str,
        old: Old,
        does: impl FnOnce(&Named, Vec<Snapshot>) -> Result<()>,
    ) -> Result<()> {
        self.nothing_may_come(name)?;
        let owns = self.kernel().keeps(Rule::SnapshotByOwner);
        let volume = Volume::attach(self.session, name, if owns { Mode::Own } else { Mode::Read })?;
        if let Err(error) = self.make_ready(&volume) {
            // It goes on as before; where this fails its lock ends with its lease.
            let _ = volume.detach();
            return Err(error);
        }
        let done = self.step(&volume, name, old, does);
        self.leave(volume, old, done.is_ok());
        done
    }

    /// Before a step over a volume: the store may have layers, and the volume's trims reach their objects.
    pub(super) fn make_ready(&self, volume: &Volume) -> Result<()> {
        record_layers(self.kernel())
            .map_err(|why| failed("the catalogue can't be changed", why))?;
        let owns = self.kernel().keeps(Rule::SnapshotByOwner);
        if owns {
            apply_all(volume, self.wait)?;
        }
        Ok(())
    }

    /// Before a step over a volume whose clients go on: all that they changed is over, and nothing that failed may
    /// still come, which would change the layer.
    pub(super) fn make_sure(&self, volume: &Volume) -> Result<()> {
        self.make_ready(volume)?;
        if !settles(volume) && self.kernel().keeps(Rule::StepsAreSure) {
            return Err(may_come(volume.name()));
        }
        complete(volume)
    }

    /// Does something with the number that a volume still has under its name.
    pub(super) fn step<T>(
        &self,
        volume: &Volume,
        name: &str,
        old: Old,
        does: impl FnOnce(&Named, Vec<Snapshot>) -> Result<T>,
    ) -> Result<T> {
        let done = || {
            let named = Names::of(self.kernel()).find_finished(name)?;
            let named = named.filter(|named| named.id == volume.id()).ok_or_else(|| {
                let name = name.escape_debug();
                Error::new(Kind::NotFound, format!("there is no volume '{name}'"))
            })?;
            does(&named, snapshots_of_one(self.kernel(), name, &named)?)
        };
        match old {
            Old::Stays => done(),
            // Nobody deletes the number, and shuts its owner out for that, before the owner has left it.
            Old::Goes => {
                let kept = Names::of(self.kernel()).keep_filling(volume.id());
                kept.map_err(|why| failed("the catalogue can't be changed", why))
                    .and_then(|()| done())
            }
        }
    }

    /// Leaves the number that a volume had whose clients go on with the next one. Whoever deletes it later must not
    /// shut this session out: where that can't be made sure now, it is tried again.
    pub(crate) fn leave_live(&self, volume: Volume) {
        let id = volume.id();
        if resign(volume) {
            Names::of(self.kernel()).unlock_filled(id);
        }
    }

    /// Leaves the number that a volume had before a step. What was done is done.
    pub(super) fn leave(&self, volume: Volume, old: Old, done: bool) {
        let id = volume.id();
        let detached = volume.detach();
        if done && detached.is_ok() {
            let _ = self.leave_ownerless(id);
        }
        if old == Old::Goes {
            Names::of(self.kernel()).unlock_filled(id);
        }
    }

    /// Refuses when a write of this session failed and may still come: it would change the snapshot.
    fn nothing_may_come(&self, name: &str) -> Result<()> {
        let Some(named) = self.session.find(name)? else { return Ok(()) };
        self.nothing_may_come_to(name, named.id)
    }

    /// The same for a number.
    pub(super) fn nothing_may_come_to(&self, name: &str, id: u64) -> Result<()> {
        let say = |why| failed("the owner of a volume can't be looked up", why);
        let owner = match self.kernel().read_value(&header::name(id), header::OWNER) {
            Err(Refusal::Missing) => return Ok(()),
            other => other.map_err(say)?,
        };
        if parse_owner(&owner) == Some((true, self.session.store().identity())) {
            return Err(may_come(name));
        }
        Ok(())
    }

    /// Nobody owned a layer last: who deletes it shuts nobody out. Nobody attaches a layer for writing any more, so
    /// that a late copy does nothing else. The attachment stays, so that none of an older one makes an owner again.
    fn leave_ownerless(&self, id: u64) -> Result<(), Refusal> {
        let op = Write {
            object: header::name(id),
            guards: vec![
                Guard::Exists,
                Guard::Omap(header::OWNER.to_vec(), owner(false, &self.session.store().identity())),
            ],
            changes: vec![Change::DropOmap(vec![header::OWNER.to_vec()])],
        };
        self.kernel().until_answered(&op).map(drop)
    }

    /// Makes a volume over the number that it has, with this table of snapshots.
    fn layer(&self, name: &str, of: &Named, table: &[Snapshot], old: Old) -> Result<Named> {
        let new = self.prepare(name, of, table)?;
        if let Some(volume) = self.live {
            // Nobody may take the number, or delete it, before it is left.
            let kept = volume.renew().and_then(|()| {
                let kept = Names::of(self.kernel()).keep_filling(of.id);
                kept.map_err(|why| failed("the catalogue can't be changed", why))
            });
            if let Err(error) = kept {
                Names::of(self.kernel()).give_up(name, &new);
                return Err(error);
            }
        }
        (self.entering)(new.id);
        self.give(name, Some((of, old)), &new).map(|()| new)
    }

    /// Makes a volume over a snapshot, which has no name yet.
    fn prepare_over(&self, name: &str, of: &Snapshot, table: &[Snapshot]) -> Result<Named> {
        let new = self.prepare(name, &of.named(), table)?;
        // The snapshot may be gone, and a lock of one more who deletes it may have made its header anew.
        let kept = kept_layers(self.kernel());
        if kept.as_ref().is_ok_and(|kept| kept.contains(&of.id)) {
            return Ok(new);
        }
        Names::of(self.kernel()).give_up(name, &new);
        kept.and(Err(missing(&of.full_name())))
    }

    /// Makes a volume over a layer, which has no name yet.
    fn prepare(&self, name: &str, of: &Named, table: &[Snapshot]) -> Result<Named> {
        let pairs = table.iter().map(Snapshot::pair).collect();
        let record = self.prepare_with(name, Some((of, u64::MAX)), pairs, 0)?;
        Ok(Named { bytes: of.bytes, ..record.named })
    }

    /// Makes a volume over a layer, of which so many bytes at most count, or over none, with these keys in its
    /// header. Whoever deletes it before it has a name looks for the objects of so many `bytes`.
    pub(super) fn prepare_with(
        &self,
        name: &str,
        over: Option<(&Named, u64)>,
        mut pairs: Vec<(Vec<u8>, Vec<u8>)>,
        bytes: u64,
    ) -> Result<Record> {
        let kernel = self.kernel();
        if let Some((of, _)) = over {
            self.may_be_over(name, of)?;
        }
        // A store may have snapshots of a version that gave parents no stamps.
        record_layers(kernel).map_err(|why| failed("the catalogue can't be changed", why))?;
        let record = Names::of(kernel).begin_sized(name, What::Volume, bytes)?;
        let id = record.named.id;
        let object_bytes = u64::from(kernel.format().object_bytes);
        if let Some((of, most)) = over {
            let objects = of.bytes.min(most).div_ceil(object_bytes);
            let parent = Parent { id: of.id, objects, stamp: kernel.stamp() };
            pairs.insert(0, (PARENT.to_vec(), parent.encode()));
        }
        pairs.insert(usize::from(over.is_some()), (BORN.to_vec(), vec![1]));
        let op = Write {
            object: header::name(id),
            guards: vec![Guard::Exists, Guard::Omap(BORN.to_vec(), Vec::new())],
            changes: vec![Change::SetOmap(pairs)],
        };
        let made = match (kernel.until_answered(&op), over) {
            // Ours, whose reply was lost.
            (Ok(_) | Err(Refusal::Mismatch), Some((of, _))) => {
                link(kernel, of.id, id).map_err(|why| match why {
                    Refusal::Mismatch => Refusal::Busy,
                    why => why,
                })
            }
            (Ok(_) | Err(Refusal::Mismatch), None) => Ok(()),
            (Err(refusal), _) => Err(refusal),
        };
        match made {
            Ok(()) => Ok(record),
            Err(refusal) => {
                Names::of(kernel).give_up_recorded(name, &record);
                Err(failed(format_args!("volume '{}' can't be made", name.escape_debug()), refusal))
            }
        }
    }

    /// Refuses a volume more over a layer that has as many layers below it, or volumes over it, as it may have.
    fn may_be_over(&self, name: &str, of: &Named) -> Result<()> {
        let kernel = self.kernel();
        let below = Below::read(kernel, of.id).map_err(|why| failed("the layers below", why))?;
        if below.layers() >= LAYERS_MAX {
            let name = name.escape_debug();
            let what = format!(
                "volume '{name}' would have more than {LAYERS_MAX} layers below it: delete some of its snapshots first"
            );
            return Err(Error::new(Kind::Unsupported, what));
        }
        may_have_more(kernel, of.id).map_err(|why| failed("the volumes over a layer", why))
    }

    /// Gives a name to a volume that was prepared.
    fn give(&self, name: &str, old: Option<(&Named, Old)>, new: &Named) -> Result<()> {
        self.give_over(name, old, new, None)
    }

    /// The same of a volume over what was received, which becomes a layer that stays by the same operation.
    pub(super) fn give_over(
        &self,
        name: &str,
        old: Option<(&Named, Old)>,
        new: &Named,
        layer: Option<(&Record, &Named)>,
    ) -> Result<()> {
        let names = Names::of(self.kernel());
        let given = names.change_over(name, old, new, layer);
        match given {
            Ok(()) => names.unlock_filled(new.id),
            Err(_) => match names.give_up(name, new) {
                Given::Done => return Ok(()),
                Given::Refused => {}
                Given::Unknown => {
                    let old = old.map(|(old, _)| old.id);
                    let numbers = old.into_iter().chain(layer.map(|(_, holds)| holds.id));
                    self.session.leaving().may_be_left().lock().extend(numbers);
                }
            },
        }
        given.map_err(|refusal| match refusal {
            Refusal::Mismatch if old.is_none() => {
                Error::new(Kind::Exists, format!("'{}' is there already", name.escape_debug()))
            }
            refusal => {
                failed(format_args!("volume '{}' can't be changed", name.escape_debug()), refusal)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Settings, create, names::FILL};

    const BYTES: u64 = 8 << 20;

    fn new_store() -> MemoryObjects {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        store
    }

    fn open(store: &MemoryObjects, name: &str) -> Arc<Session> {
        Arc::new(Session::open(Arc::new(store.session(name)), Settings::default()).unwrap())
    }

    fn write(session: &Arc<Session>, name: &str, byte: u8) {
        let volume = Volume::attach(session, name, Mode::Own).unwrap();
        volume.write_at(0, &[byte; 4096]).unwrap();
        volume.detach().unwrap();
    }

    fn first_block(session: &Arc<Session>, name: &str) -> Vec<u8> {
        let mut bytes = vec![0xaa; 4096];
        Volume::attach(session, name, Mode::Read).unwrap().read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn delete_all(session: &Session) {
        while session.delete_step().unwrap() {}
    }

    #[test]
    fn a_session_that_could_not_give_a_name_goes_on() {
        let store = new_store();
        let (one, other) = (open(&store, "one"), open(&store, "other"));
        one.create_volume("v", BYTES).unwrap();
        write(&one, "v", 1);
        let snapshots = Snapshots::of(&one);
        snapshots.take("v@a").unwrap();
        let new = snapshots.prepare_over("c", &snapshots.find("v@a").unwrap(), &[]).unwrap();
        other.create_volume("c", BYTES).unwrap();
        assert_eq!(snapshots.give("c", None, &new).unwrap_err().kind(), Kind::Exists);
        delete_all(&other);
        write(&one, "v", 2);
        assert_eq!(first_block(&other, "c"), [0; 4096]);
    }

    #[test]
    fn who_deletes_what_a_rollback_left_shuts_out_nobody() {
        let store = new_store();
        let (one, other) = (open(&store, "one"), open(&store, "other"));
        one.create_volume("v", BYTES).unwrap();
        write(&one, "v", 1);
        let snapshots = Snapshots::of(&one);
        snapshots.take("v@a").unwrap();
        write(&one, "v", 2);
        snapshots
            .while_owned("v", Old::Goes, |named, table| {
                let new = snapshots.prepare_over("v", &table[0], &table)?;
                snapshots.give("v", Some((named, Old::Goes)), &new)?;
                delete_all(&other);
                Ok(())
            })
            .unwrap();
        delete_all(&other);
        assert_eq!(first_block(&one, "v"), [1; 4096]);
        write(&one, "v", 3);
    }

    #[test]
    fn a_snapshot_that_is_gone_is_none_though_a_lock_made_its_header_anew() {
        let store = new_store();
        let (one, other) = (open(&store, "one"), open(&store, "other"));
        one.create_volume("v", BYTES).unwrap();
        write(&one, "v", 1);
        let snapshots = Snapshots::of(&one);
        snapshots.take("v@a").unwrap();
        let seen = snapshots.find("v@a").unwrap();
        snapshots.delete("v@a").unwrap();
        delete_all(&one);
        other.store().lock(&header::name(seen.id), FILL, "other", None).unwrap();
        assert_eq!(snapshots.prepare_over("c", &seen, &[]).unwrap_err().kind(), Kind::NotFound);
        // The record of the new number goes, too, and shuts out nobody.
        delete_all(&other);
        write(&one, "v", 2);
    }
}
