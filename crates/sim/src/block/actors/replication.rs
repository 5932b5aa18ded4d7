//! A snapshot is sent, and received in the same store as one of a replica: in parts, between which
//! all else goes on, over a network that loses and exchanges frames, with crashes anywhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Cursor,
    ops::Range,
};

use onefold_block::{Content, Frame, Next, StreamReader};
use onefold_core::{BLOCK_BYTES, Error, Kind, VolumeId};

use super::client::Change;
use crate::{
    block::{
        model::{Key, LOST, Verb},
        run::{Flow, STEP_LIMIT, Sim, Stop},
        subject::{Ack, Skips, Step, Subject},
    },
    checker::{Checker, Failure},
};

/// Bytes before the first frame of a stream, and those around the payload of a frame.
const MAGIC_BYTES: usize = 16;
const FRAME_BYTES: usize = 64;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A snapshot on its way.
pub(crate) struct Transfer {
    id: VolumeId,
    of: Key,
    base: Option<Key>,
    /// What the replica holds of the base.
    held: Option<Key>,
    into: Result<Key, String>,
    name: String,
    /// What the sender can't read.
    skips: Option<Skips>,
    told: Told,
    /// Blocks that are lost, and that no cursor has noted.
    lost: Vec<Range<u64>>,
    /// The rest of the stream, as long as nothing interrupts it.
    reader: Option<StreamReader<Cursor<Vec<u8>>>>,
}

impl Transfer {
    /// Sender and receiver lose each other.
    pub(crate) fn cut_off(&mut self) {
        self.reader = None;
    }
}

/// What was told of a block that is being received.
#[derive(Clone, Copy, Default)]
struct Word {
    /// It is lost, with the next cursor.
    lost: bool,
    /// It is lost, or what it was before: a cursor that was asked for may be on its way.
    may_be_lost: bool,
    /// It was written; false when a crash may have taken that.
    whole: Option<bool>,
}

/// What was told of the blocks that are being received.
#[derive(Default)]
struct Told(BTreeMap<u64, Word>);

impl Told {
    /// Blocks come, or are lost.
    fn take(&mut self, frame: &Frame) {
        for lba in frame.first..frame.first + frame.blocks {
            let word = self.0.entry(lba).or_default();
            if frame.content == Content::Lost {
                word.lost = true;
            } else {
                *word = Word { whole: Some(true), ..Word::default() };
            }
        }
    }

    /// The sender begins anew behind a cursor.
    fn again(&mut self, cursor: u64) {
        for word in self.0.range_mut(cursor..).map(|(_, word)| word) {
            word.may_be_lost |= word.lost;
            word.lost = false;
            word.whole = word.whole.map(|_| false);
        }
    }

    /// The blocks that are lost, and those that may be; `held` has the blocks that the base may have
    /// lost, and whether it surely has.
    fn losses(&self, held: &BTreeMap<u64, bool>) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let (mut lost, mut unsure) = (BTreeSet::new(), BTreeSet::new());
        for &lba in self.0.keys().chain(held.keys()) {
            let word = self.0.get(&lba).copied().unwrap_or_default();
            let before = if word.whole == Some(true) { None } else { held.get(&lba) };
            if word.lost || before == Some(&true) && word.whole.is_none() {
                lost.insert(lba);
            } else if word.may_be_lost || before.is_some() {
                unsure.insert(lba);
            }
        }
        (lost, unsure)
    }
}

impl<S: Subject> Sim<S> {
    /// Begins to send a snapshot of a volume, or goes on with one.
    pub(crate) fn replicate(&mut self, key: Key) -> Flow<()> {
        if let Some(ticket) = self.model.pending_verb() {
            self.drive(ticket)?;
        }
        self.drive_acts()?;
        let Some(store) = &self.store else { return Ok(()) };
        let receiving = store.receiving();
        let Some(transfer) = &self.transfer else {
            return match receiving[..] {
                [] => {
                    self.trim_before_snapshot(key)?;
                    self.begin_transfer(key)?;
                    if self.crowds() && self.transfer.is_some() { self.go_on(0) } else { Ok(()) }
                }
                _ => self.give_up_transfer(),
            };
        };
        let Some(&(_, cursor)) = receiving.iter().find(|(id, _)| *id == transfer.id) else {
            // The crash took its beginning, or it has ended.
            self.transfer = None;
            return self.begin_transfer(key);
        };
        let there = |key: &Key| self.model.volumes().contains_key(key);
        let stays = there(&transfer.of) && transfer.base.as_ref().is_none_or(there);
        if !stays || self.rng.once_in(25) {
            return self.give_up_transfer();
        }
        self.go_on(cursor)
    }

    /// Sometimes a snapshot is taken, and sent next, whose volume was trimmed just before: the range
    /// waits for more checkpoints than the snapshot and the beginning of the receive take.
    fn trim_before_snapshot(&mut self, key: Key) -> Flow<()> {
        if !self.crowds() || self.model.snapshots(key).is_empty() || !self.rng.percent(90) {
            return Ok(());
        }
        let bytes = self.model.volumes().get(&key).map_or(0, |volume| volume.blocks) * BLOCK;
        self.change(key, 0, Change::Trim(bytes))?;
        let name = self.free_name('v');
        self.apply(Verb::Snapshot(vec![(key, name)]))?;
        self.drive_acts()
    }

    /// Gives up whatever is being received.
    pub(crate) fn give_up_transfer(&mut self) -> Flow<()> {
        self.transfer = None;
        let mut tries = 0;
        loop {
            let Some(store) = &self.store else { return Ok(()) };
            let Some(&(id, _)) = store.receiving().first() else { return Ok(()) };
            let deleted = store.delete_volume(id);
            self.say(|| format!("give up receiving {id}: {deleted:?}"));
            match deleted {
                Ok(Ack::Durable) => {}
                Ok(Ack::Later(ticket)) => self.drive(ticket.0)?,
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error) => return Err(self.judge("end of a receive", &error)),
            }
        }
    }

    fn id_of(&self, key: Key) -> VolumeId {
        self.model.volumes().get(&key).map(|volume| volume.id).unwrap_or_default()
    }

    fn begin_transfer(&mut self, key: Key) -> Flow<()> {
        let snapshots = self.model.snapshots(key);
        let newest = snapshots.iter().max().copied();
        let newest = newest.filter(|_| self.crowds() && self.rng.percent(90));
        let Some(of) = newest.or_else(|| self.rng.pick(&snapshots).copied()) else {
            return Ok(());
        };
        let replicas: Vec<Key> = {
            let all = self.model.volumes().iter().filter(|(_, volume)| volume.replica);
            all.map(|(key, _)| *key).collect()
        };
        let name = self.free_name('s');
        let replica = self.rng.pick(&replicas).copied().filter(|_| self.rng.percent(75));
        // The last snapshot that a replica got is the one that it holds.
        let held = replica.and_then(|replica| self.model.snapshots(replica).into_iter().max());
        let sent = held.and_then(|held| {
            let name = &self.model.volumes().get(&held)?.name;
            self.sent.get(name).copied().filter(|key| self.model.volumes().contains_key(key))
        });
        let limit = self.params.options.snapshots.map_or(u64::MAX, |sharing| sharing.snapshots);
        let (base, there, into) = match (replica, held, sent) {
            (Some(replica), Some(held), Some(sent))
                if (self.model.snapshots(replica).len() as u64) < limit && sent != of =>
            {
                (Some(sent), Some(held), Ok(replica))
            }
            _ if replicas.len() < 3 => (None, None, Err(self.free_name('r'))),
            _ => return Ok(()),
        };
        // Sometimes from another snapshot than the one that is there.
        let other = self.rng.pick(&snapshots).copied();
        let other = other.filter(|other| base.is_some_and(|base| base != *other));
        let often = if self.crowds() { 5 } else { 30 };
        let wrong = other.filter(|other| *other != of && self.rng.percent(often));
        let volume = match &into {
            Ok(replica) => self.model.volumes().get(replica).map(|one| one.name.clone()),
            Err(name) => Some(name.clone()),
        };
        let Some(volume) = volume else { return Ok(()) };
        let from = wrong.or(base).map(|base| self.id_of(base));
        let held = there;
        let there = held.map(|held| self.id_of(held));
        let of_id = self.id_of(of);
        let loses = self.params.options.snapshots.is_some_and(|sharing| sharing.loses);
        let skips = loses.then(|| Skips {
            salt: self.rng.next(),
            percent: [0, 10, 40][self.rng.below(3) as usize],
        });
        let mut tries = 0;
        loop {
            let Some(store) = &self.store else { return Ok(()) };
            let about = store
                .stream(of_id, from, 0, skips)
                .and_then(|bytes| store.read_stream(bytes))
                .map(|reader| reader.about().clone());
            let asked = about.and_then(|about| store.receive(&about, there, &volume, &name));
            self.say(|| {
                format!("receive {of} of {key} from {base:?} as {volume}@{name}: {asked:?}")
            });
            match asked {
                Ok(_) if wrong.is_some() => {
                    let message = "changes were taken that do not fit the snapshot that is there";
                    return Err(Failure::new(Checker::Volumes, message).into());
                }
                Ok((id, number)) => {
                    self.transfer = Some(Transfer {
                        id,
                        of,
                        base,
                        held,
                        into,
                        name,
                        skips,
                        told: Told::default(),
                        lost: Vec::new(),
                        reader: None,
                    });
                    return self.drive_number(number);
                }
                Err(error) if wrong.is_some() && error.kind() == Kind::InvalidInput => {
                    self.reach.hit("replication: another base is refused");
                    return Ok(());
                }
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error) if self.is_full(&error) => return Ok(()),
                Err(error) => return Err(self.judge("begin of a receive", &error)),
            }
        }
    }

    fn is_full(&self, error: &Error) -> bool {
        error.kind() == Kind::NoSpace && !self.disk.is_down() && !self.disk.has_failed()
    }

    /// Steps until an act is done.
    fn drive_number(&mut self, number: u64) -> Flow<()> {
        for _ in 0..STEP_LIMIT {
            if self.store.as_ref().is_none_or(|store| store.acts_done() >= number) {
                return Ok(());
            }
            for step in Step::DURABLE.into_iter().chain([Step::Checkpoint]) {
                self.step(step)?;
            }
        }
        let message = format!("the act {number} is not durable after {STEP_LIMIT} rounds of steps");
        Err(Failure::new(Checker::Progress, message).into())
    }

    /// Some frames of a stream; the rest comes another time, or after a crash again.
    fn go_on(&mut self, cursor: u64) -> Flow<()> {
        let Some(mut transfer) = self.transfer.take() else { return Ok(()) };
        let (of, base) = (self.id_of(transfer.of), transfer.base.map(|base| self.id_of(base)));
        let mut reader = match transfer.reader.take() {
            Some(reader) => reader,
            None => {
                let Some(store) = &self.store else { return Ok(()) };
                if cursor > 0 {
                    self.reach.hit("replication: goes on at a cursor");
                }
                transfer.told.again(cursor);
                transfer.lost.clear();
                let sent = store.stream(of, base, cursor, transfer.skips);
                let sent = match sent {
                    Ok(sent) => {
                        self.check_stream(&sent, &transfer, cursor)?;
                        self.network(sent)
                    }
                    Err(error) => {
                        self.transfer = Some(transfer);
                        return Err(self.judge("a snapshot that is sent", &error));
                    }
                };
                let Some(store) = &self.store else { return Ok(()) };
                let Ok(reader) = store.read_stream(sent) else {
                    self.transfer = Some(transfer);
                    return Ok(());
                };
                reader
            }
        };
        let id = transfer.id;
        let frames = self.rng.within(1, 12);
        let (mut at, mut ended) = (None, None);
        for _ in 0..frames {
            match reader.next_frame() {
                Ok(Next::End(blocks)) => {
                    ended = Some(blocks);
                    break;
                }
                Ok(Next::Frame(frame)) if frame.content == Content::Lost => {
                    self.reach.hit("replication: lost blocks");
                    let end = frame.first + frame.blocks;
                    transfer.told.take(&frame);
                    transfer.lost.push(frame.first..end);
                    at = Some(end);
                }
                Ok(Next::Frame(frame)) => {
                    self.transfer = Some(Transfer { reader: None, ..transfer });
                    if !self.write_frame(id, &frame)? {
                        return Ok(());
                    }
                    let Some(back) = self.transfer.take() else { return Ok(()) };
                    transfer = back;
                    transfer.told.take(&frame);
                    at = Some(frame.first + frame.blocks);
                }
                Ok(Next::Offer(_)) => {
                    let message = "a stream that is not negotiated has an offer";
                    return Err(Failure::new(Checker::Volumes, message).into());
                }
                Err(error) => {
                    self.say(|| format!("the stream ends: {error}"));
                    self.reach.hit("replication: a damaged stream is refused");
                    self.transfer = Some(transfer);
                    return Ok(());
                }
            }
        }
        if let Some(blocks) = ended {
            self.transfer = Some(transfer);
            return self.end_transfer(blocks);
        }
        transfer.reader = Some(reader);
        self.transfer = Some(transfer);
        if let (Some(at), true) = (at, self.rng.percent(60)) {
            let Some(store) = &self.store else { return Ok(()) };
            let lost = self.transfer.as_ref().map_or(&[][..], |transfer| &transfer.lost[..]);
            let noted = store.note_cursor(id, at, lost);
            self.say(|| format!("cursor of {id} at {at}, {lost:?} lost: {noted:?}"));
            if let (Ok(()), Some(transfer)) = (&noted, &mut self.transfer) {
                transfer.lost.clear();
            }
            match noted {
                Ok(()) if self.rng.percent(15) => return self.lose_power_behind_cursor(),
                Ok(()) if self.rng.percent(40) => {
                    for _ in 0..3 {
                        self.step(Step::Checkpoint)?;
                    }
                }
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Busy || self.is_full(&error) => {}
                Err(error) => return Err(self.judge("cursor", &error)),
            }
        }
        Ok(())
    }

    /// A stream tells of every block in which the snapshot differs from that which it is based on.
    fn check_stream(&self, sent: &[u8], transfer: &Transfer, from: u64) -> Flow<()> {
        let (Some(base), Some(store)) = (transfer.base, &self.store) else { return Ok(()) };
        let of = transfer.of;
        let Ok(mut reader) = store.read_stream(sent.to_vec()) else { return Ok(()) };
        let mut told = BTreeSet::new();
        while let Ok(Next::Frame(frame)) = reader.next_frame() {
            told.extend(frame.first..frame.first + frame.blocks);
        }
        let end = self.model.volumes().get(&of).map_or(0, |volume| volume.blocks);
        for lba in self.model.touched(of).into_iter().filter(|lba| (from..end).contains(lba)) {
            let before = self.model.live(base, lba);
            let differs = self.model.live(of, lba).iter().all(|now| !before.contains(now));
            if differs && !told.contains(&lba) {
                let message = format!("a stream of {of} since {base} leaves out block {lba}");
                return Err(Failure::new(Checker::Volumes, message).into());
            }
        }
        Ok(())
    }

    /// The power fails when the cursor is durable, and nothing that was open when it was noted became so
    /// by itself: blocks before the cursor must be there.
    fn lose_power_behind_cursor(&mut self) -> Flow<()> {
        for _ in 0..8 {
            for step in [Step::Prepare, Step::Write, Step::Settle, Step::Checkpoint] {
                self.step(step)?;
            }
        }
        self.reach.hit("replication: power lost behind a cursor");
        Err(Stop::Down)
    }

    /// Writes a frame, and lets the store work sometimes; false when the store is full.
    fn write_frame(&mut self, id: VolumeId, frame: &onefold_block::Frame) -> Flow<bool> {
        let (mut tries, mut taken) = (0, 0);
        loop {
            let Some(store) = &self.store else { return Ok(false) };
            let written = store.apply(id, frame, &mut taken);
            self.say(|| {
                format!("frame of {id} at {}, {} blocks: {written:?}", frame.first, frame.blocks)
            });
            match written {
                Ok(()) => break,
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error) if self.is_full(&error) => {
                    self.give_up_transfer()?;
                    return Ok(false);
                }
                Err(error) => return Err(self.judge("frame", &error)),
            }
        }
        while self.rng.percent(40) {
            let at = self.rng.below(Step::DURABLE.len() as u64) as usize;
            self.step(Step::DURABLE[at])?;
        }
        Ok(true)
    }

    /// The snapshot is told, and the replica holds it.
    fn end_transfer(&mut self, blocks: u64) -> Flow<()> {
        let Some(transfer) = &self.transfer else { return Ok(()) };
        let (id, of) = (transfer.id, transfer.of);
        let (lost, unsure) = transfer.told.losses(&self.lost_in(transfer.held));
        let verb = Verb::Received {
            of,
            into: transfer.into.clone(),
            name: transfer.name.clone(),
            lost,
            unsure,
        };
        let noted = transfer.lost.clone();
        self.sent.insert(transfer.name.clone(), of);
        let (mut tries, mut cut) = (0, false);
        loop {
            let Some(store) = &self.store else { return Ok(()) };
            self.model.begin(verb.clone());
            // As the product's receiver does, once: a trim with each try would take, as often as a
            // checkpoint gives it back, the room that the end waits for.
            let ready = if cut { Ok(()) } else { store.cut_received(id, blocks) };
            cut = ready.is_ok();
            let asked = ready.and_then(|()| store.received(id, blocks, &noted));
            self.say(|| format!("{verb:?}: {asked:?}"));
            match asked {
                Ok((volume, number)) => {
                    self.reach.hit("replication: a snapshot was received");
                    self.asked = Some((number, vec![id, volume]));
                    self.note_durable()?;
                    return if self.rng.percent(40) { self.drive_acts() } else { Ok(()) };
                }
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    self.model.refused();
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error) if self.is_full(&error) => {
                    self.model.refused();
                    return self.give_up_transfer();
                }
                Err(error) => return Err(self.judge("end of a receive", &error)),
            }
        }
    }

    /// The blocks of a snapshot that may be lost, and whether they surely are.
    fn lost_in(&self, held: Option<Key>) -> BTreeMap<u64, bool> {
        let Some(held) = held else { return BTreeMap::new() };
        let live = |lba| (lba, self.model.live(held, lba));
        let all = self.model.touched(held).into_iter().map(live);
        all.filter(|(_, live)| live.contains(&LOST))
            .map(|(lba, live)| (lba, live == [LOST]))
            .collect()
    }

    /// Sometimes loses a frame, or exchanges two.
    fn network(&mut self, stream: Vec<u8>) -> Vec<u8> {
        if !self.rng.once_in(4) {
            return stream;
        }
        let mut cuts = vec![MAGIC_BYTES];
        while let Some(length) = cuts.last().and_then(|at| stream.get(at + 4..at + 8)) {
            let payload = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
            cuts.push(cuts[cuts.len() - 1] + payload as usize + FRAME_BYTES);
        }
        // Neither the first frame nor the last one.
        let between = cuts.len().saturating_sub(4) as u64;
        if between < 2 {
            return stream;
        }
        let n = 1 + self.rng.below(between - 1) as usize;
        let (first, second) = (&stream[cuts[n]..cuts[n + 1]], &stream[cuts[n + 1]..cuts[n + 2]]);
        let lost = self.rng.percent(50);
        let mut other = stream[..cuts[n]].to_vec();
        other.extend_from_slice(second);
        if !lost {
            other.extend_from_slice(first);
        }
        other.extend_from_slice(&stream[cuts[n + 2]..]);
        other
    }
}
