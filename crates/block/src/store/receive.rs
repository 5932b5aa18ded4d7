//! Receiving: a stream becomes a snapshot, whole or not at all, and its volume holds it.
//!
//! | crash | what is found |
//! |---|---|
//! | before the receive begins, or in its checkpoint | nothing of it |
//! | while frames are written | the volume as before; a receive that nobody sees, whose cursor has all blocks before it |
//! | in the checkpoint that ends it | either that, or the snapshot, and the volume that holds it |
//!
//! A stream that goes on begins with what the cursor has: [`resumed`](super::resumed).
//!
//! Blocks that the sender could not read are noted here, and lost in the checkpoint of the cursor that
//! passes them, or of the end. A crash forgets both, and the sender goes on before them.

use std::{
    io::{Read, Write},
    ops::Range,
};

use onefold_core::{Block, BlockRead, Error, Kind, Lba, Result, Ticket, VolumeId};
use onefold_stream::{Cursor, Form, MAGIC_BYTES, negotiation::Answering, read_up_to};

use super::{
    Copies, handles::Handle, images, offered::Offered, receives::volume_of, resumed, send::guid,
    snapshots::now_ms,
};
use crate::{
    Begin, Content, Frame, Next, Receive, Receiving, StreamReader, Times, Totals,
    format::FIRST_DOMAIN,
};

/// A receive that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The snapshot, like `vm1@monday`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What the stream held.
    pub totals: Totals,
    /// The block where it went on.
    pub start: u64,
    /// The sender asked what is missing, and was told.
    pub negotiated: bool,
}

impl Copies<'_> {
    /// Receives a snapshot, and gives its volume what it holds: that of the sender, or `into`, which
    /// is made if it is not there. The volume is a replica from then on, and who has it open gets
    /// errors. With `rollback` the volume may be one that was changed since. Durable on return.
    ///
    /// After an error, and after a crash, a stream that begins at the place of
    /// [`receives`](Self::receives) goes on. `look` hears of the bytes so far, and gives up when it
    /// fails.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `NotFound` when the base is missing, `Busy`, `NoSpace`, `Corrupt` for
    /// a damaged stream, `Io`, `Stopped`, `Unsupported` with leaves in place.
    pub fn receive(
        &self,
        into: Option<&str>,
        rollback: bool,
        input: impl Read,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Received> {
        let reader = StreamReader::begin(input)?;
        self.take(into, rollback, reader, Offered::new(None), look)
    }

    /// As [`receive`](Self::receive); a sender that asks which blocks are missing gets its answers by
    /// `output`. `nonce` is random.
    ///
    /// # Errors
    /// As there; of a sender that asks, `InvalidInput` when its store has another secret, and
    /// `Unsupported` in a store that compares bytes.
    pub fn receive_or_negotiate(
        &self,
        into: Option<&str>,
        rollback: bool,
        mut input: impl Read,
        output: &mut dyn Write,
        nonce: &[u8; 32],
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Received> {
        let mut magic = [0; MAGIC_BYTES];
        let came = read_up_to(&mut input, &mut magic)?;
        let Some(form) = Form::of(&magic).filter(|form| form.negotiated) else {
            return self.receive(into, rollback, magic[..came].chain(input), look);
        };
        self.must_trust_fingerprints()?;
        let (secret, algorithm) = self.fingerprints_by();
        let (answering, key) = Answering::begin(&mut input, output, &secret, algorithm, nonce)?;
        let reader = StreamReader::begin_negotiated(input, key, form.skips)?;
        self.take(into, rollback, reader, Offered::new(Some(answering)), look)
    }

    fn take(
        &self,
        into: Option<&str>,
        rollback: bool,
        mut reader: StreamReader<impl Read>,
        mut offered: Offered<'_>,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Received> {
        let about = reader.about().clone();
        if about.guid == [0; 16] || about.blocks == 0 {
            let message = "the stream is of no snapshot: `onefold import` takes it";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let volume = into.unwrap_or(&about.volume);
        let (id, held) = self.begin_receive(volume, rollback, &about)?;
        let taken = self
            .complete_index()
            .and_then(|()| self.take_stream(id, &held, &mut reader, &mut offered, look));
        if taken.is_err() {
            // If that fails, too, the store has stopped, or the receive is gone.
            let _ = offered.take_back(self, id);
        }
        let ended = taken.and_then(|lost| {
            held.check()?;
            self.end_receive(id, &about, &lost, rollback)
        });
        self.0.handles.lock().close(id, &held);
        let name = ended?;
        // The snapshot is durable, whether or not the sender still hears of it.
        let _ = offered.done(about.blocks);
        Ok(Received {
            name,
            bytes: about.blocks * 4096,
            totals: reader.totals(),
            start: about.start,
            negotiated: offered.is_asked(),
        })
    }

    /// Makes the entry, or finds the one that goes on; nobody else works on it.
    fn begin_receive(
        &self,
        volume: &str,
        rollback: bool,
        about: &Begin,
    ) -> Result<(VolumeId, Handle)> {
        if let Some(name) = images::imported_by(volume) {
            let message = format!(
                "'{volume}' is what an import of '{name}' makes: receive it under another name"
            );
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let base = self.base_of(volume, about)?;
        let goes_on = self.receive_of(volume, about)?;
        for known in base.iter().chain(goes_on.iter().map(|(id, _)| id)) {
            self.must_be_of_domain(*known)?;
        }
        let id = match &goes_on {
            Some((id, state)) if about.start <= state.cursor => *id,
            // Nothing, or another snapshot, was cut off.
            None if about.start == 0 => {
                self.replace_receive(volume, base)?;
                let what = Receive {
                    volume: volume.to_owned(),
                    snapshot: about.snapshot.clone(),
                    guid: about.guid,
                    base,
                    base_guid: about.base,
                    blocks: about.blocks,
                    no_dedup: about.no_dedup.clone(),
                    domain: self.1.unwrap_or(FIRST_DOMAIN),
                    now_ms: now_ms(),
                    rollback,
                };
                let (id, asked) = self.0.act(|acts| acts.receive(what.clone()))?;
                self.0.perform(asked)?;
                id
            }
            _ => {
                let message = "the stream goes on where nothing was received before: use the token \
                               of `onefold receive --token`, or send it from its beginning";
                return Err(Error::new(Kind::InvalidInput, message));
            }
        };
        let held = {
            let mut handles = self.0.handles.lock();
            if handles.is_open(id) {
                return Err(Error::new(Kind::Busy, "somebody sends this snapshot here already"));
            }
            handles.open(id)
        };
        if let Some((id, _)) = goes_on {
            // Looked at again: nobody else lets its cursor rise any more.
            let now = self.0.engine.volume(id).map(|state| state.receiving);
            let forgotten = now.and_then(|state| match state {
                Some(state) => resumed::forget_rest(self, id, &state),
                None => Err(Error::new(Kind::Busy, "the receive was ended or dropped meanwhile")),
            });
            if let Err(error) = forgotten {
                self.0.handles.lock().close(id, &held);
                return Err(error);
            }
        }
        Ok((id, held))
    }

    /// What is there belongs to the domain that was named, if one was, and to none that was erased.
    fn must_be_of_domain(&self, id: VolumeId) -> Result<()> {
        let found = self.0.engine.kernel.state.lock().volumes.alive(id)?.domain;
        if self.1.is_none_or(|named| named == found) {
            return Ok(());
        }
        let message = format!(
            "what is here of it belongs to domain {found}, and so does all that is received for it"
        );
        Err(Error::new(Kind::InvalidInput, message))
    }

    /// The snapshot here to which the stream is to be applied.
    fn base_of(&self, volume: &str, about: &Begin) -> Result<Option<VolumeId>> {
        if about.base == [0; 16] {
            return Ok(None);
        }
        let of = self.0.engine.find_volume(volume)?;
        // Older programs gave two snapshots one number when nothing was written between them: they hold
        // the same, and that which the replica holds is meant.
        let held = self.0.engine.volume(of)?.replica_of;
        let mut fitting: Vec<VolumeId> = self
            .0
            .acts()
            .snapshots(of)
            .into_iter()
            .filter(|(_, one)| guid(one) == about.base)
            .map(|(id, _)| id)
            .collect();
        fitting.sort_by_key(|&id| (Some(id) == held, id));
        fitting.pop().map(Some).ok_or_else(|| {
            let message = format!(
                "the volume '{volume}' has not the snapshot from which the stream was made: send one \
                 without --from, or from another snapshot"
            );
            Error::new(Kind::NotFound, message)
        })
    }

    /// The receive of this snapshot that was cut off.
    fn receive_of(&self, volume: &str, about: &Begin) -> Result<Option<(VolumeId, Receiving)>> {
        for (id, receive) in self.0.acts().receiving() {
            let Some(receiving) = receive.receiving else { continue };
            let base = receiving.base.map(|base| self.0.engine.volume(base)).transpose()?;
            let base = base.as_ref().map_or([0; 16], guid);
            // The name, too: snapshots of older programs may share a number.
            if volume_of(&self.0.engine, &receive) == volume
                && receive.received_name().1 == about.snapshot
                && receiving.guid == about.guid
                && base == about.base
            {
                return Ok(Some((id, receiving)));
            }
        }
        Ok(None)
    }

    /// Writes all frames; gives the blocks that were lost since the last cursor. After an error the
    /// cursor rises as far as frames were written.
    fn take_stream(
        &self,
        id: VolumeId,
        held: &Handle,
        reader: &mut StreamReader<impl Read>,
        offered: &mut Offered<'_>,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Vec<Range<u64>>> {
        let start = reader.about().start;
        let since = self.0.clock.now();
        let mut cursor = Cursor::new(start, since);
        loop {
            let next = held.check().and_then(|()| reader.next_frame());
            let next = next.and_then(|next| match &next {
                Next::End(_) => offered.nothing_left().map(|()| next),
                Next::Frame(frame) => offered.frame(frame).map(|()| next),
                Next::Offer(offer) => offered.answer(self, id, offer).map(|()| next),
            });
            let frame = match next {
                Ok(Next::End(_)) => return Ok(cursor.lost),
                Ok(Next::Frame(frame)) => frame,
                Ok(Next::Offer(_)) => continue,
                Err(error) => {
                    self.note_rest(id, &cursor);
                    return Err(error);
                }
            };
            cursor.at = frame.first + frame.blocks;
            if frame.content == Content::Lost {
                cursor.lose(frame.first..cursor.at);
            } else {
                self.apply(id, &frame)?;
            }
            offered.applied();
            if let Err(given_up) = look(cursor.at * 4096) {
                self.note_rest(id, &cursor);
                return Err(given_up);
            }
            self.note(id, &mut cursor)?;
        }
    }

    /// Lets the cursor rise when it is time; when too much waits, a later one does.
    fn note(&self, id: VolumeId, cursor: &mut Cursor) -> Result<()> {
        let now = self.0.clock.now();
        let must = cursor.must_rise();
        if !must && !cursor.is_due(now) {
            return Ok(());
        }
        let note = || self.0.acts().cursor(id, cursor.at, &cursor.lost, now_ms());
        match if must { self.0.changes().make(note) } else { note() } {
            Err(later) if !must && matches!(later.kind(), Kind::Busy | Kind::NoSpace) => {
                cursor.put_off(now);
            }
            Err(error) => return Err(error),
            Ok(_) => *cursor = Cursor::new(cursor.at, now),
        }
        self.0.background.raise();
        Ok(())
    }

    /// The stream has ended too early: what it brought need not be sent again.
    fn note_rest(&self, id: VolumeId, cursor: &Cursor) {
        if cursor.has_more() {
            // If that fails, the cursor is lower, and more is sent again.
            let note = || self.0.acts().cursor(id, cursor.at, &cursor.lost, now_ms());
            let asked = self.0.changes().make(note);
            let _ = asked.and_then(|asked| self.0.perform(asked));
        }
    }

    /// Makes it the snapshot that its volume holds; returns its name.
    fn end_receive(
        &self,
        id: VolumeId,
        about: &Begin,
        lost: &[Range<u64>],
        rollback: bool,
    ) -> Result<String> {
        let before = self.0.engine.volume(id)?;
        if before.blocks > about.blocks {
            let (from, rest) = (about.blocks, before.blocks - about.blocks);
            self.change(id, || self.0.engine.trim(id, from * 4096, rest * 4096))?;
        }
        let name = format!("{}@{}", volume_of(&self.0.engine, &before), before.received_name().1);
        let of = before.receiving.and_then(|receiving| receiving.base);
        let of = of.map(|base| self.0.engine.volume(base)).transpose()?;
        let into = of.and_then(|base| base.snapshot).map(|origin| origin.volume);
        let times = Times { now_ms: now_ms(), made_ms: about.made_ms };
        let asked = self.0.act(|acts| {
            let ask = || acts.received(id, about.blocks, lost, rollback, times);
            match into {
                Some(into) => self.0.handles.lock().end(into, true, ask)?.done(),
                None => ask(),
            }
        });
        let (_, asked) = asked?;
        self.0.perform(asked)?;
        Ok(name)
    }

    /// Writes a frame as a client would.
    pub(super) fn apply(&self, id: VolumeId, frame: &Frame) -> Result<()> {
        let (offset, bytes) = (frame.first * 4096, frame.blocks * 4096);
        let mut taken = 0;
        match &frame.content {
            Content::Hole => self.change(id, || self.0.engine.trim(id, offset, bytes)),
            Content::Zeroes => {
                self.change(id, || self.0.engine.write_zeroes(id, offset, bytes, true, &mut taken))
            }
            Content::Data(data) => {
                self.change(id, || self.0.engine.write_from(id, offset, data, &mut taken))
            }
            Content::Repeat(as_at) => self.repeat(id, frame, *as_at),
            Content::Held(proof) => super::offered::prove(self, id, frame, proof),
            Content::Lost => {
                let message = "the stream has lost blocks, which only a snapshot can have";
                Err(Error::new(Kind::InvalidInput, message))
            }
        }
    }

    /// Writes again the blocks that were written from `as_at` on.
    fn repeat(&self, id: VolumeId, frame: &Frame, as_at: u64) -> Result<()> {
        let mut blocks = Block::zeroed_vec(frame.blocks as usize);
        let mut reads = [BlockRead { first: Lba(as_at), into: &mut blocks, result: Ok(()) }];
        self.0.engine.read(id, &mut reads);
        let [BlockRead { result, .. }] = reads;
        result?;
        let (offset, mut taken) = (frame.first * 4096, 0);
        let data = onefold_core::block::bytes(&blocks);
        self.change(id, || self.0.engine.write_from(id, offset, data, &mut taken))
    }

    /// Makes a change of data, which clients who have the volume open, as that of an import, see.
    fn change(&self, id: VolumeId, mut change: impl FnMut() -> Result<Ticket>) -> Result<()> {
        self.0.changes().make_of_data(|| self.0.handles.lock().changing(id, &mut change)).map(drop)
    }

    /// Makes a replica an ordinary volume. Durable on return.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput` when it is no replica, or while a snapshot of it is received.
    pub fn promote(&self, volume: &str) -> Result<()> {
        let id = self.0.engine.find_volume(volume)?;
        let asked = self.0.act(|acts| acts.promote(id))?;
        self.0.perform(asked)
    }
}
