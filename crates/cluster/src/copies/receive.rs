//! Receiving: a stream becomes a snapshot, whole or not at all, and its volume holds it.
//!
//! [`received`](crate::layers::received) has the steps, and what is found after a crash. A stream that goes on begins
//! with what the cursor has. Blocks behind it that came before are of the same snapshot, and may stay.

use std::io::Read;

use onefold_core::{Error, Kind, Result};
use onefold_stream::{
    Begin, Content, Cursor, Form, Frame, MAGIC_BYTES, Next, StreamReader, Totals, read_up_to,
};

use super::{Copies, Filling};
use crate::{
    format::BLOCK,
    layers::received::{self, Coming, Receive},
    rules::Rule,
    volume::{Renewal, Volume, leave_filled, while_kept},
};

/// A receive that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The snapshot, like `vm1@monday`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The contents of the stream.
    pub totals: Totals,
    /// The block where it went on.
    pub start: u64,
}

/// Does the last step of a receive, for the volume of this name.
pub type Ending<'a> = dyn FnMut(&str, &mut dyn FnMut() -> Result<()>) -> Result<()> + 'a;

impl Copies<'_> {
    /// Receives a snapshot, and gives its volume what it holds: that of the sender, or `into`, which is made if it is
    /// not there. The volume is a replica from then on. With `rollback` the volume may be one that was changed since.
    /// Durable on return.
    ///
    /// After an error, and after a crash, a stream that begins at the place of [`receives`](Self::receives) goes on.
    /// `look` hears of the bytes so far, and gives up when it fails.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `NotFound` when the base is missing, `Busy`, `NoSpace`, `Corrupt` for a damaged
    /// stream, `Io`, `Stopped`; `Unsupported` for a stream that may have lost blocks.
    pub fn receive(
        &self,
        into: Option<&str>,
        rollback: bool,
        input: impl Read,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Received> {
        self.receive_with((into, rollback), input, look, &mut |_, step| step())
    }

    /// The same in a server: `ending` does the last step, while nobody in this process attaches the volume that it is
    /// told of.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and those of `ending`.
    pub fn receive_with(
        &self,
        (into, rollback): (Option<&str>, bool),
        mut input: impl Read,
        look: &mut dyn FnMut(u64) -> Result<()>,
        ending: &mut Ending<'_>,
    ) -> Result<Received> {
        let mut magic = [0; MAGIC_BYTES];
        let came = read_up_to(&mut input, &mut magic)?;
        if Form::of(&magic).is_some_and(|form| form.skips) {
            let what = "a cluster store can't keep which blocks of a snapshot were lost: send it without \
                        --skip-damaged";
            return Err(Error::new(Kind::Unsupported, what));
        }
        let mut reader = StreamReader::begin(magic[..came].chain(input))?;
        let about = reader.about().clone();
        if about.guid == [0; 16] || about.blocks == 0 {
            let what = "the stream is of no snapshot: `onefold import` takes it";
            return Err(Error::new(Kind::InvalidInput, what));
        }
        let coming = coming(&about, into.unwrap_or(&about.volume));
        let mut receive = received::begin(self.0, &coming, about.start, rollback)?;
        let busy = || Error::new(Kind::Busy, "somebody sends this snapshot here already");
        let _filled = self.0.leaving().fill(receive.id()).ok_or_else(busy)?;
        let volume = received::attach(self.0, &receive)?;
        let done = while_kept(self.kernel(), None, &volume, || {
            self.take(&volume, &mut receive, &mut reader, look)?;
            ending(&coming.volume, &mut || received::finish(self.0, &volume, &receive, rollback))
        });
        leave_filled(volume);
        done?;
        Ok(Received {
            name: coming.full_name(),
            bytes: about.blocks * u64::from(BLOCK),
            totals: reader.totals(),
            start: about.start,
        })
    }

    /// Writes all frames. After an error the cursor rises as far as frames were written.
    fn take(
        &self,
        volume: &Volume,
        receive: &mut Receive,
        reader: &mut StreamReader<impl Read>,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let kernel = self.kernel();
        let steps = kernel.settings().cursor_blocks;
        let now = || kernel.store().monotonic();
        let mut filling = Filling::new(volume);
        let mut cursor = Cursor::new(reader.about().start, now()).every(steps);
        let mut renewal = Renewal::of(kernel, None);
        loop {
            let next = reader.next_frame().and_then(|next| {
                renewal.when_due(volume)?;
                Ok(next)
            });
            let frame = match next {
                Ok(Next::End(_)) if !kernel.keeps(Rule::SnapshotAfterItsData) => return Ok(()),
                Ok(Next::End(_)) => return filling.settle(),
                Ok(Next::Frame(frame)) => frame,
                Ok(Next::Offer(_)) => return Err(Error::new(Kind::Corrupt, "nobody negotiates")),
                Err(error) => {
                    self.note_rest(receive, &mut filling, &cursor);
                    return Err(error);
                }
            };
            apply(&mut filling, &frame)?;
            cursor.at = frame.first + frame.blocks;
            if let Err(given_up) = look(cursor.at * u64::from(BLOCK)) {
                self.note_rest(receive, &mut filling, &cursor);
                return Err(given_up);
            }
            if cursor.is_due(now()) {
                if kernel.keeps(Rule::CursorBehindData) {
                    filling.settle()?;
                }
                received::note(kernel, receive, cursor.at)?;
                cursor = Cursor::new(cursor.at, now()).every(steps);
            }
        }
    }

    /// The stream has ended too early: what it brought need not be sent again.
    fn note_rest(&self, receive: &mut Receive, filling: &mut Filling<'_>, cursor: &Cursor) {
        if cursor.has_more() && filling.settle().is_ok() {
            // If that fails, the cursor is lower, and more is sent again.
            let _ = received::note(self.kernel(), receive, cursor.at);
        }
    }
}

/// What comes by a stream, for a volume of this name.
fn coming(about: &Begin, volume: &str) -> Coming {
    Coming {
        guid: about.guid,
        base: about.base,
        blocks: about.blocks,
        made_ms: about.made_ms,
        over: 0,
        volume: volume.to_owned(),
        snapshot: about.snapshot.clone(),
    }
}

/// Writes a frame as a client would.
fn apply(filling: &mut Filling<'_>, frame: &Frame) -> Result<()> {
    let block = u64::from(BLOCK);
    let (offset, bytes) = (frame.first * block, frame.blocks * block);
    match &frame.content {
        Content::Hole | Content::Zeroes => filling.zero(offset..offset + bytes),
        Content::Data(data) => filling.write(offset, data),
        Content::Repeat(as_at) => {
            let mut data = vec![0; bytes as usize];
            filling.read(as_at * block, &mut data)?;
            filling.write(offset, &data)
        }
        Content::Held(_) | Content::Lost => {
            Err(Error::new(Kind::Corrupt, "the stream has frames that it must not have"))
        }
    }
}
