//! What is received from another store: a volume without a name, which becomes a snapshot.
//!
//! A receive is a number of its own, over the layer of the snapshot that the stream is based on. Its record is in the
//! shard of the volume that gets the snapshot, and says that it stays although no session fills it. Its header tells
//! which snapshot comes, and up to which block all is durable.
//!
//! | step | after a crash |
//! |---|---|
//! | a number is recorded, as of a volume that is being filled; its header gets its parent and what comes | a worker deletes it |
//! | its record says that it is being received | the receive goes on where its cursor is |
//! | frames are written, and then the cursor rises | likewise |
//! | another number is prepared over it, with the table of snapshots, as for a [snapshot](super::snapshots) | likewise; a worker deletes the other number |
//! | one operation makes the received number a layer that stays, and gives the volume's name to the other one | the snapshot is there, and its volume holds it |
//!
//! *Invariant:* the cursor is set after the answer to each write before it. No value of it comes a second time, and
//! each change compares the value before, so that a late copy of one does nothing.
//!
//! *Invariant:* what is received has one owner, who also owns the volume that gets the snapshot while the last
//! operation is decided. Whoever takes either over shuts that session out first.

use std::{sync::Arc, time::Duration};

use onefold_core::{
    Error, Kind, Result, checksum,
    object::{Change, Guard, ObjectName, ReadPart, Refusal, Write},
};

use super::{
    snapshots::{Snapshots, parts},
    table::{SNAPSHOTS_MAX, Snapshot, snapshots_of_one},
};
use crate::{
    chunk_map::stamp_value,
    format::{
        Stamp,
        catalogue::{Named, VOLUME_MAX, What},
        corrupt,
    },
    kernel::Kernel,
    names::{FILL, Names, Old, Record},
    replies::failed,
    rules::Rule,
    session::Session,
    volume::{Mode, Purpose, Volume, attach_for, header, is_replica, parse_owner, while_kept},
};

/// The purpose of the key by which snapshots of a store get numbers that no other ones have.
const GUIDS: &str = "onefold 2026-11 the number of a snapshot of a cluster volume";

/// Bytes of what is received before its names, and of a cursor.
const HEAD_BYTES: usize = 60;
const CURSOR_BYTES: usize = 24;

/// A number that tells a snapshot from any other.
pub(crate) type Guid = [u8; 16];

/// The snapshot that is received, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Coming {
    /// The sender's number of it.
    pub(crate) guid: Guid,
    /// The snapshot that the stream is based on; zero for none.
    pub(crate) base: Guid,
    /// Its size in blocks.
    pub(crate) blocks: u64,
    /// When the sender made it, in milliseconds since 1970.
    pub(crate) made_ms: u64,
    /// The number of the layer of the base; 0 for none.
    pub(crate) over: u64,
    /// The volume that gets it.
    pub(crate) volume: String,
    /// Its name, without the volume's.
    pub(crate) snapshot: String,
}

impl Coming {
    fn encode(&self) -> Vec<u8> {
        let mut value = [self.guid, self.base].concat();
        for number in [self.blocks, self.made_ms, self.over] {
            value.extend(number.to_le_bytes());
        }
        for name in [&self.volume, &self.snapshot] {
            value.extend((name.len() as u16).to_le_bytes());
        }
        value.extend(self.volume.as_bytes());
        value.extend(self.snapshot.as_bytes());
        value
    }

    fn decode(id: u64, value: &[u8]) -> Result<Coming, Refusal> {
        let parsed = || {
            let (head, names) = value.split_at_checked(HEAD_BYTES)?;
            let number = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
            let length = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
            let (volume, snapshot) = names.split_at_checked(length(56))?;
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
            let coming = Coming {
                guid: head[..16].try_into().ok()?,
                base: head[16..32].try_into().ok()?,
                blocks: number(32)?,
                made_ms: number(40)?,
                over: number(48)?,
                volume: text(volume)?,
                snapshot: text(snapshot)?,
            };
            let fits = snapshot.len() == length(58)
                && (1..=VOLUME_MAX / 4096).contains(&coming.blocks)
                && coming.over < id;
            fits.then_some(coming)
        };
        parsed().ok_or_else(|| {
            let what = format_args!("what volume {id:x} says of the snapshot that came is damaged");
            Refusal::Failed(corrupt(what))
        })
    }

    /// The name of the snapshot with the volume's.
    pub(crate) fn full_name(&self) -> String {
        format!("{}@{}", self.volume, self.snapshot)
    }

    /// What the layer holds that it becomes.
    fn layer(&self, id: u64) -> Named {
        Named { what: What::Volume, id, bytes: self.blocks * 4096, pieces: 0, moves: 0 }
    }
}

/// How far a receive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All blocks before this one are durable.
    pub(crate) cursor: u64,
    /// When it was set, in milliseconds since 1970.
    pub(crate) heard_ms: u64,
    stamp: Stamp,
}

impl Progress {
    fn encode(self) -> Vec<u8> {
        let numbers = [self.cursor.to_le_bytes(), self.heard_ms.to_le_bytes()].concat();
        [numbers, stamp_value(self.stamp)].concat()
    }

    fn decode(id: u64, value: &[u8]) -> Result<Progress, Refusal> {
        let number = |at: usize| value[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        if value.len() != CURSOR_BYTES {
            let what = format_args!("the place up to which volume {id:x} was received is damaged");
            return Err(Refusal::Failed(corrupt(what)));
        }
        Ok(Progress { cursor: number(0), heard_ms: number(8), stamp: Stamp(number(16)) })
    }
}

/// A receive that is there.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) coming: Coming,
    pub(crate) progress: Progress,
    pub(crate) record: Record,
    /// Where the record is.
    shard: ObjectName,
}

impl Receive {
    /// Its number.
    pub(crate) fn id(&self) -> u64 {
        self.record.named.id
    }
}

/// The number that tells a snapshot from any other: that of its sender, or one of its store, its layer and its time.
pub(crate) fn guid(kernel: &Kernel, snapshot: &Snapshot) -> Result<Guid> {
    let id = snapshot.named().id;
    if let Some(coming) = coming(kernel, id).map_err(|why| unread(&snapshot.full_name(), why))? {
        return Ok(coming.guid);
    }
    let made = snapshot.made.as_nanos().to_le_bytes();
    let parts =
        [&kernel.format().id[..], &id.to_le_bytes(), &made, &snapshot.bytes.to_le_bytes()].concat();
    let mut guid = [0; 16];
    guid.copy_from_slice(&checksum::derived_key(GUIDS, &parts)[..16]);
    Ok(guid)
}

/// What came, or comes, as a number; nothing for one that was not received.
fn coming(kernel: &Kernel, id: u64) -> Result<Option<Coming>, Refusal> {
    match kernel.read_value(&header::name(id), header::RECEIVED) {
        Err(Refusal::Missing) => Ok(None),
        Ok(value) if value.is_empty() => Ok(None),
        read => Coming::decode(id, &read?).map(Some),
    }
}

/// A receive whose header can't be read: nothing goes on with it. It is given up as any other.
#[derive(Clone, Debug)]
pub(crate) struct Damaged {
    /// What it was to become, where the header still says so.
    pub(crate) coming: Option<Coming>,
    pub(crate) why: Error,
    record: Record,
    shard: ObjectName,
}

impl Damaged {
    /// Its number.
    pub(crate) fn id(&self) -> u64 {
        self.record.named.id
    }

    /// The size that its record says.
    pub(crate) fn bytes(&self) -> u64 {
        self.record.named.bytes
    }

    /// The name of its snapshot, or else one that no snapshot has.
    pub(crate) fn full_name(&self) -> String {
        let coming = self.coming.as_ref().map(Coming::full_name);
        coming.unwrap_or_else(|| format!("@{:x}", self.id()))
    }
}

/// The receives of a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receives {
    /// By the names of their snapshots.
    pub(crate) whole: Vec<Receive>,
    pub(crate) damaged: Vec<Damaged>,
}

/// All receives of a store. One that is damaged keeps the others from nothing.
///
/// # Errors
/// The store's; `Corrupt` for the catalogue alone.
pub(crate) fn receives(kernel: &Kernel) -> Result<Receives> {
    let mut all = Receives::default();
    let mut records = Names::of(kernel).unfinished()?.records;
    records.retain(|(_, record)| record.is_received());
    for (shard, record) in records {
        let id = record.named.id;
        let keys = vec![header::RECEIVED.to_vec(), header::CURSOR.to_vec()];
        let found = match kernel.read_one(&header::name(id), vec![ReadPart::Keys(keys)]) {
            // It was given up meanwhile.
            Err(Refusal::Missing) => continue,
            // In a sealed store somebody else has written it.
            Err(Refusal::Failed(why)) if why.kind() == Kind::Corrupt => {
                all.damaged.push(Damaged { coming: None, why, record, shard });
                continue;
            }
            read => read.map_err(|why| unread("what is being received", why))?,
        };
        let value = |key: &[u8]| {
            let found = found.pairs(0).0.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.as_slice()).unwrap_or_default()
        };
        let coming = Coming::decode(id, value(header::RECEIVED));
        let progress = coming.as_ref().map_err(Clone::clone).and_then(|coming| {
            Progress::decode(id, value(header::CURSOR)).and_then(|progress| {
                match progress.cursor <= coming.blocks {
                    true => Ok(progress),
                    false => {
                        let what = format_args!("volume {id:x} was received up to behind its end");
                        Err(Refusal::Failed(corrupt(what)))
                    }
                }
            })
        });
        match (coming, progress) {
            (Ok(coming), Ok(progress)) => {
                all.whole.push(Receive { coming, progress, record, shard });
            }
            (coming, Err(why)) => {
                let (coming, why) = (coming.ok(), unread("what is being received", why));
                all.damaged.push(Damaged { coming, why, record, shard });
            }
            (Err(_), Ok(_)) => {}
        }
    }
    all.whole.sort_by_key(|receive| (receive.coming.full_name(), receive.id()));
    all.damaged.sort_by_key(|damaged| (damaged.full_name(), damaged.id()));
    Ok(all)
}

fn unread(name: &str, why: Refusal) -> Error {
    failed(format_args!("'{}'", name.escape_debug()), why)
}

fn now_ms(kernel: &Kernel) -> u64 {
    u64::try_from(kernel.store().time().as_millis()).unwrap_or(u64::MAX)
}

/// The snapshot of a volume that a stream is based on.
fn base_of(kernel: &Kernel, table: &[Snapshot], base: Guid) -> Result<Snapshot> {
    for snapshot in table.iter().rev() {
        if guid(kernel, snapshot)? == base || !kernel.keeps(Rule::BaseCompared) {
            return Ok(snapshot.clone());
        }
    }
    let what = "the volume has not the snapshot from which the stream was made: send one without --from, or from \
                another snapshot";
    Err(Error::new(Kind::NotFound, what))
}

/// Refuses what can't become a snapshot of a volume as it is now: `named` with these snapshots, if there is one.
/// Gives the snapshot that the stream is based on.
fn fits(
    kernel: &Kernel,
    coming: &Coming,
    there: Option<(&Named, &[Snapshot])>,
    rollback: bool,
) -> Result<Option<Snapshot>> {
    let volume = coming.volume.escape_debug();
    let Some((named, table)) = there else {
        if coming.base == Guid::default() {
            return Ok(None);
        }
        let what = format!(
            "there is no volume '{volume}', to which the stream is to be applied: send one without --from"
        );
        return Err(Error::new(Kind::NotFound, what));
    };
    if named.what != What::Volume || coming.base == Guid::default() {
        let what = format!(
            "'{volume}' is there already: send the snapshot from one that it has (--from), or receive it as another \
             volume"
        );
        return Err(Error::new(Kind::Exists, what));
    }
    if table.iter().any(|snapshot| snapshot.name == coming.snapshot) {
        let what = format!("snapshot '{}' exists already", coming.full_name().escape_debug());
        return Err(Error::new(Kind::Exists, what));
    }
    if table.len() >= SNAPSHOTS_MAX {
        let what = format!("a volume has {SNAPSHOTS_MAX} snapshots at most");
        return Err(Error::new(Kind::Unsupported, what));
    }
    let base = base_of(kernel, table, coming.base)?;
    if rollback || replica_of(kernel, named.id)? == Some(base.named().id) {
        return Ok(Some(base));
    }
    let what = format!(
        "volume '{volume}' was changed since the snapshot from which the stream was made, or may have been: \
         --rollback gives up what it holds since"
    );
    Err(Error::new(Kind::InvalidInput, what))
}

/// The number of the snapshot that a replica holds; nothing of another volume.
fn replica_of(kernel: &Kernel, id: u64) -> Result<Option<u64>> {
    let value = match kernel.read_value(&header::name(id), header::REPLICA) {
        Err(Refusal::Missing) => return Ok(None),
        read => read.map_err(|why| unread("the header of a volume", why))?,
    };
    Ok(value.try_into().ok().map(u64::from_le_bytes))
}

/// Begins to receive a snapshot, or goes on with what came of it. `start` is the block from which on the stream has
/// it.
///
/// # Errors
/// `Exists`, `NotFound` without the base, `InvalidInput` for a stream that goes on where nothing was received, or
/// for a volume that was changed; `Busy` while somebody sends another one for the volume; the store's.
pub(crate) fn begin(
    session: &Arc<Session>,
    coming: &Coming,
    start: u64,
    rollback: bool,
) -> Result<Receive> {
    let kernel = session.kernel();
    parts(&coming.full_name())?;
    if coming.snapshot.contains('@') || coming.snapshot.chars().any(char::is_control) {
        let what = "the name of the snapshot in the stream is none";
        return Err(Error::new(Kind::InvalidInput, what));
    }
    if coming.volume.contains('@') {
        let what = format!(
            "a volume called '{}' would look like a snapshot: give `onefold receive` another name for it",
            coming.volume.escape_debug()
        );
        return Err(Error::new(Kind::InvalidInput, what));
    }
    if coming.blocks > VOLUME_MAX / 4096 {
        let what = "the snapshot is larger than a volume of a cluster store can be, 128 TiB";
        return Err(Error::new(Kind::InvalidInput, what));
    }
    let names = Names::of(kernel);
    let named = names.find_finished(&coming.volume)?;
    let table = match &named {
        Some(named) if named.what == What::Volume => {
            snapshots_of_one(kernel, &coming.volume, named)?
        }
        _ => Vec::new(),
    };
    let there = named.as_ref().map(|named| (named, table.as_slice()));
    let base = fits(kernel, coming, there, rollback)?;
    let over = base.as_ref().map_or(0, |base| base.named().id);
    let coming = Coming { over, ..coming.clone() };
    let Receives { whole: mut before, mut damaged } = receives(kernel)?;
    before.retain(|receive| receive.coming.volume == coming.volume);
    damaged.retain(|one| one.coming.as_ref().is_some_and(|one| one.volume == coming.volume));
    let same =
        |receive: &&Receive| Coming { made_ms: coming.made_ms, ..receive.coming.clone() } == coming;
    match before.iter().find(same) {
        Some(receive) if start <= receive.progress.cursor => return Ok(receive.clone()),
        None if start == 0 => {}
        _ => {
            let what = "the stream goes on where nothing was received before: use the token of `onefold receive \
                        --token`, or send it from its beginning";
            return Err(Error::new(Kind::InvalidInput, what));
        }
    }
    before.iter().try_for_each(|receive| give_up(session, receive))?;
    damaged.iter().try_for_each(|damaged| give_up_damaged(session, damaged))?;
    let say = |why| {
        failed(format_args!("'{}' can't be received", coming.full_name().escape_debug()), why)
    };
    kernel.record_feature(|format| std::mem::replace(&mut format.received, true)).map_err(say)?;
    let progress = Progress { cursor: 0, heard_ms: now_ms(kernel), stamp: kernel.stamp() };
    let pairs = vec![
        (header::RECEIVED.to_vec(), coming.encode()),
        (header::CURSOR.to_vec(), progress.encode()),
    ];
    let (below, bytes) = (base.as_ref().map(Snapshot::named), coming.blocks * 4096);
    let below = below.as_ref().map(|below| (below, bytes));
    let record = Snapshots::of(session).prepare_with(&coming.volume, below, pairs, bytes)?;
    match names.receives(&coming.volume, &record) {
        Ok(Some(record)) => {
            names.unlock_filled(record.named.id);
            Ok(Receive { shard: names.shard(&coming.volume), coming, progress, record })
        }
        Ok(None) => {
            let what = "what was to be received was given up meanwhile";
            Err(Error::new(Kind::Busy, what))
        }
        Err(refusal) => {
            names.give_up_recorded(&coming.volume, &record);
            Err(say(refusal))
        }
    }
}

/// Attaches what is being received, for writing. Nobody else may have it.
///
/// # Errors
/// `Busy` while somebody sends it; `NotFound` when it was given up, or ended.
pub(crate) fn attach(session: &Arc<Session>, receive: &Receive) -> Result<Volume> {
    Snapshots::of(session).nothing_may_come_to(&receive.coming.volume, receive.id())?;
    let named = receive.coming.layer(receive.id());
    let attached = attach_for(session, &receive.coming.volume, &named, (Mode::Own, Purpose::Fill));
    attached.map_err(|error| match error.kind() {
        Kind::Busy => {
            Error::new(Kind::Busy, "somebody sends this snapshot here already").caused_by(error)
        }
        _ => error,
    })
}

/// Lets the cursor rise. All blocks before it are durable.
///
/// # Errors
/// `Busy` when another session has changed it; the store's.
pub(crate) fn note(kernel: &Kernel, receive: &mut Receive, cursor: u64) -> Result<()> {
    let next = Progress { cursor, heard_ms: now_ms(kernel), stamp: kernel.stamp() };
    let object = header::name(receive.id());
    let op = Write {
        object: object.clone(),
        guards: vec![
            Guard::Exists,
            Guard::Omap(header::CURSOR.to_vec(), receive.progress.encode()),
        ],
        changes: vec![Change::SetOmap(vec![(header::CURSOR.to_vec(), next.encode())])],
    };
    let noted = match kernel.until_answered(&op) {
        // Ours, whose reply was lost.
        Err(Refusal::Mismatch)
            if kernel
                .read_value(&object, header::CURSOR)
                .is_ok_and(|value| value == next.encode()) =>
        {
            Ok(())
        }
        other => other.map(drop),
    };
    noted.map_err(|why| {
        let name = receive.coming.full_name();
        failed(format_args!("the place up to which '{}' was received", name.escape_debug()), why)
    })?;
    receive.progress = next;
    Ok(())
}

/// Makes what came a snapshot, and gives its volume what it holds. `volume` is what came, attached.
///
/// # Errors
/// As [`begin`]; `Busy` while a server writes to the volume, or a change that failed may still come.
pub(crate) fn finish(
    session: &Arc<Session>,
    volume: &Volume,
    receive: &Receive,
    rollback: bool,
) -> Result<()> {
    let (kernel, snapshots) = (session.kernel(), Snapshots::of(session));
    let coming = &receive.coming;
    cut_off(kernel, volume, receive)?;
    if kernel.keeps(Rule::SnapshotAfterItsData) {
        snapshots.make_sure(volume)?;
    }
    volume.renew()?;
    match Names::of(kernel).find_finished(&coming.volume)? {
        Some(named) if named.what == What::Volume => {
            let old = attach_for(session, &coming.volume, &named, (Mode::Own, Purpose::Exchange))?;
            let done = while_kept(kernel, None, &old, || {
                snapshots.make_ready(&old)?;
                snapshots.step(&old, &coming.volume, Old::Goes, |named, table| {
                    exchange(session, volume.id(), receive, Some((named, table)), rollback)
                })
            });
            snapshots.leave(old, Old::Goes, done.is_ok());
            done
        }
        Some(named) => {
            exchange(session, volume.id(), receive, Some((&named, Vec::new())), rollback)
        }
        None => exchange(session, volume.id(), receive, None, rollback),
    }
}

/// The last step, by the owner of both.
fn exchange(
    session: &Arc<Session>,
    id: u64,
    receive: &Receive,
    there: Option<(&Named, Vec<Snapshot>)>,
    rollback: bool,
) -> Result<()> {
    let (kernel, snapshots, coming) = (session.kernel(), Snapshots::of(session), &receive.coming);
    let base = fits(
        kernel,
        coming,
        there.as_ref().map(|(named, table)| (*named, table.as_slice())),
        rollback,
    )?;
    let is_over = base.as_ref().map_or(0, |base| base.named().id) == coming.over;
    if !is_over && kernel.keeps(Rule::BaseCompared) {
        let what = "the snapshot from which the stream was made was deleted while it came";
        return Err(Error::new(Kind::NotFound, what));
    }
    let (old, mut table) = match there {
        Some((named, table)) => (Some((named, Old::Goes)), table),
        None => (None, Vec::new()),
    };
    let layer = coming.layer(id);
    table.push(Snapshot {
        volume: coming.volume.clone(),
        name: coming.snapshot.clone(),
        bytes: layer.bytes,
        made: Duration::from_millis(coming.made_ms),
        id,
    });
    let mut pairs: Vec<_> = table.iter().map(Snapshot::pair).collect();
    pairs.push((header::REPLICA.to_vec(), id.to_le_bytes().to_vec()));
    let new = snapshots.prepare_with(&coming.volume, Some((&layer, u64::MAX)), pairs, 0)?;
    let new = Named { bytes: layer.bytes, ..new.named };
    snapshots.give_over(&coming.volume, old, &new, Some((&receive.record, &layer)))
}

/// Empties what lies behind the end of the snapshot in its last object, where its base is longer.
fn cut_off(kernel: &Kernel, volume: &Volume, receive: &Receive) -> Result<()> {
    let bytes = receive.coming.blocks * 4096;
    let end = bytes.next_multiple_of(u64::from(kernel.format().object_bytes));
    if receive.coming.over == 0 || bytes == end {
        return Ok(());
    }
    volume.set_size(end);
    let cut = volume.discard(bytes, end - bytes);
    volume.set_size(bytes);
    cut
}

/// Gives up what is being received.
///
/// # Errors
/// `Busy` while somebody sends it, and when a write of this session may still come to it; the store's.
pub(crate) fn give_up(session: &Session, receive: &Receive) -> Result<()> {
    give_up_as(session, &receive.coming.full_name(), &receive.shard, &receive.record)
}

/// Gives up a receive that is damaged.
///
/// # Errors
/// As [`give_up`].
pub(crate) fn give_up_damaged(session: &Session, damaged: &Damaged) -> Result<()> {
    give_up_as(session, &damaged.full_name(), &damaged.shard, &damaged.record)
}

fn give_up_as(session: &Session, name: &str, shard: &ObjectName, record: &Record) -> Result<()> {
    let busy = || {
        let what =
            format!("somebody sends '{}' at this moment: end that first", name.escape_debug());
        Error::new(Kind::Busy, what)
    };
    let _filled = session.leaving().fill(record.named.id).ok_or_else(busy)?;
    abandon(session, shard, record).map_err(|why| match why {
        Refusal::Busy => busy(),
        why => failed(format_args!("'{}' can't be given up", name.escape_debug()), why),
    })
}

/// Marks what is being received as deleted, while nobody can take it: whoever deletes it shuts its next owner out.
/// `Busy` while somebody has it.
fn abandon(session: &Session, shard: &ObjectName, record: &Record) -> Result<(), Refusal> {
    let (kernel, id) = (session.kernel(), record.named.id);
    let (names, header, settings) = (Names::of(kernel), header::name(id), kernel.settings());
    match kernel.read_value(&header, header::OWNER) {
        // A write of this session that failed, or its last step, may still come, and nobody shuts it out for that.
        Ok(now) if parse_owner(&now) == Some((true, kernel.store().identity())) => {
            return Err(Refusal::Busy);
        }
        Err(Refusal::Missing) => return Ok(()),
        read => drop(read?),
    }
    // A worker waits for this one. Otherwise it would shut this session out as the one that has the other lock.
    kernel.lock_until_answered(&header, FILL, settings.lease)?;
    let locked = kernel.lock_until_answered(&header, header::LOCK, settings.volume_lease);
    let done = locked.and_then(|()| {
        // Another one may have been faster; where all is gone, the locks made the header anew.
        let gone = !names.abandon(shard, record)? && names.recorded_in(shard, id)?.is_none();
        let remove =
            || Write { object: header.clone(), guards: Vec::new(), changes: vec![Change::Remove] };
        if gone { kernel.until_answered(&remove()).map(drop) } else { Ok(()) }
    });
    // Otherwise both end with their leases.
    if kernel.store().unlock(&header, header::LOCK, &kernel.cookie()).is_ok() {
        names.unlock_filled(id);
    }
    done
}

/// True while somebody receives it.
///
/// # Errors
/// The store's.
pub(crate) fn is_at_work(kernel: &Kernel, name: &str, id: u64) -> Result<bool> {
    let holder = kernel.store().holder(&header::name(id), header::LOCK);
    holder.map(|holder| holder.is_some()).map_err(|why| unread(name, why))
}

/// Makes a replica an ordinary volume.
///
/// # Errors
/// `NotFound`; `InvalidInput` when it is no replica, or while a snapshot of it is being received; the store's.
pub(crate) fn promote(session: &Arc<Session>, name: &str) -> Result<()> {
    let kernel = session.kernel();
    let none =
        || Error::new(Kind::NotFound, format!("there is no volume '{}'", name.escape_debug()));
    let named = session.find(name)?.filter(|named| named.what == What::Volume).ok_or_else(none)?;
    if !is_replica(kernel, named.id)? {
        return Err(Error::new(Kind::InvalidInput, "the volume is no replica"));
    }
    if receives(kernel)?.whole.iter().any(|receive| receive.coming.volume == name) {
        let what = "a snapshot of the volume is being received: go on with that, or give it up by `onefold receive \
                    --abort`";
        return Err(Error::new(Kind::InvalidInput, what));
    }
    let volume = attach_for(session, name, &named, (Mode::Own, Purpose::Exchange))?;
    let object = header::name(named.id);
    let dropped = match kernel.read_value(&object, header::REPLICA) {
        Ok(value) if value.is_empty() => Ok(()),
        read => read.and_then(|value| {
            let op = Write {
                object,
                guards: vec![Guard::Exists, Guard::Omap(header::REPLICA.to_vec(), value)],
                changes: vec![Change::DropOmap(vec![header::REPLICA.to_vec()])],
            };
            match kernel.until_answered(&op) {
                // Ours, whose reply was lost.
                Ok(_) | Err(Refusal::Mismatch) => Ok(()),
                Err(refusal) => Err(refusal),
            }
        }),
    };
    let detached = volume.detach();
    dropped.map_err(|why| {
        failed(format_args!("volume '{}' can't be promoted", name.escape_debug()), why)
    })?;
    detached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coming() -> Coming {
        Coming {
            guid: [1; 16],
            base: [2; 16],
            blocks: 77,
            made_ms: 5,
            over: 3,
            volume: "vm1".into(),
            snapshot: "monday".into(),
        }
    }

    #[test]
    fn rule_09_what_a_header_says_of_a_receive_is_looked_at() {
        let value = coming().encode();
        assert_eq!(Coming::decode(4, &value).unwrap(), coming());
        // Its base would be itself, or younger.
        assert!(Coming::decode(3, &value).is_err());
        for cut in 0..value.len() {
            assert!(Coming::decode(4, &value[..cut]).is_err(), "{cut}");
        }
        assert!(Coming::decode(4, &[value.clone(), vec![b'x']].concat()).is_err());
        for blocks in [0, VOLUME_MAX / 4096 + 1, u64::MAX] {
            assert!(Coming::decode(4, &Coming { blocks, ..coming() }.encode()).is_err());
        }
        let progress = Progress { cursor: 7, heard_ms: 8, stamp: Stamp(9) };
        assert_eq!(Progress::decode(4, &progress.encode()).unwrap(), progress);
        assert!(Progress::decode(4, &progress.encode()[1..]).is_err());
    }
}
