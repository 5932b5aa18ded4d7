//! Sending: a snapshot, or what changed between two, as a stream; an export, as a stream of raw data.
//!
//! Every block is read as a client reads it, and so verified. Damage ends the stream, or with
//! [`SendWhat::skip_damaged`] its blocks are sent as lost.

use std::{io::Write, sync::Arc};

use onefold_core::{Error, ExtentKind, Kind, Result, checksum, key_memory::Key};
use onefold_stream::{
    Begin, Piece, PieceKind, SendWhat, Sender, Sent, Sink, StreamWriter, Totals, goes_on, is_damage,
};

use super::{Copies, walk::Walk};
use crate::{
    format::BLOCK,
    kernel::Kernel,
    layers::{
        received::{Guid, guid},
        snapshots::Snapshots,
    },
    volume::{Mode, Volume},
};

/// Extents of a volume that one step asks for.
const EXTENTS: usize = 1024;

/// The purpose of the key by which a sender tells contents apart.
const CONTENTS: &str = "onefold 2026-11 contents that a stream of a cluster volume has sent";

/// A stream that is about to be sent, and the snapshots that it is made of. Somebody may delete them meanwhile: then it
/// ends with an error.
pub struct Sending<'s> {
    kernel: &'s Kernel,
    volume: Volume,
    base: Option<Volume>,
    begin: Begin,
    /// Of a volume, which may be written meanwhile: raw data.
    is_export: bool,
    what: SendWhat,
}

impl Sending<'_> {
    /// How the stream begins.
    #[must_use]
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// The number of what is sent, which nothing else in the store ever has.
    #[must_use]
    pub fn layer(&self) -> u64 {
        self.volume.id()
    }

    /// Begins the stream.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn writer<W: Write>(&self, out: W) -> Result<StreamWriter<W>> {
        let plain = self.what.plain || self.is_export;
        StreamWriter::begin_as(out, self.what.skip_damaged, &self.begin, !plain)
    }

    /// Sends all that it holds.
    ///
    /// # Errors
    /// `Corrupt` when data is damaged; `NotFound` when a snapshot was deleted meanwhile; those of the output.
    pub fn send_to<S: Sink>(&self, sink: S) -> Result<S> {
        let skips = self.what.skip_damaged;
        let sent = (!self.is_export).then(|| Sent::new(Arc::new(self.contents_by())));
        let mut sender = Sender::of(&self.volume, sink, sent, skips);
        match self.is_export {
            true => self.all_extents(|piece| sender.piece(&piece, &[]))?,
            false => self.all_pieces(skips, |piece| sender.piece(&piece, &[]))?,
        }
        Ok(sender.writer)
    }

    /// The key of the hashes by which contents are told apart.
    fn contents_by(&self) -> Key {
        let format = self.kernel.format();
        let parts = [&format.secret[..], &format.id].concat();
        Key::of(&checksum::derived_key(CONTENTS, &parts))
    }

    fn all_pieces(&self, skips: bool, mut visit: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let walk = Walk::new(self.kernel, &self.volume, self.base.as_ref());
        let (blocks, mut at) = (self.begin.blocks, self.begin.start);
        while at < blocks {
            let found = match walk.pieces(at) {
                Err(error) if skips && is_damage(&error) => self.past_damage(&walk, at)?,
                found => found?,
            };
            found.pieces.into_iter().try_for_each(&mut visit)?;
            at = found.next.max(at + 1);
        }
        Ok(())
    }

    /// The next object, all of which is read where its map or that of the base can't be.
    fn past_damage(&self, walk: &Walk<'_>, at: u64) -> Result<onefold_stream::Pieces> {
        match walk.one(at) {
            Err(error) if is_damage(&error) => {
                let next = walk.end_of_object(at);
                let piece = Piece { first: at, blocks: next - at, kind: PieceKind::Data };
                Ok(onefold_stream::Pieces { pieces: vec![piece], next })
            }
            found => found,
        }
    }

    fn all_extents(&self, mut visit: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let (block, bytes) = (u64::from(BLOCK), self.begin.blocks * u64::from(BLOCK));
        let mut at = 0;
        while at < bytes {
            let extents = onefold_core::Volume::extents(&self.volume, at, bytes - at, EXTENTS)?;
            if extents.is_empty() {
                return Err(Error::new(Kind::Corrupt, "the volume does not say what it holds"));
            }
            for extent in extents {
                let piece = Piece {
                    first: at / block,
                    blocks: extent.bytes / block,
                    kind: extent.kind.into(),
                };
                if extent.kind != ExtentKind::Hole {
                    visit(piece)?;
                }
                at += extent.bytes;
            }
        }
        Ok(())
    }
}

impl<'s> Copies<'s> {
    /// The stream of a snapshot, or of what changed since another one.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for a token of another snapshot.
    pub fn sending(&self, what: &SendWhat) -> Result<Sending<'s>> {
        let (kernel, snapshots) = (self.kernel(), Snapshots::of(self.0));
        let base = what.from.as_ref().map(|from| -> Result<(Volume, Guid)> {
            let base = snapshots.find(from)?;
            Ok((snapshots.attach(from)?, guid(kernel, &base)?))
        });
        let base = base.transpose()?;
        let snapshot = snapshots.find(&what.snapshot)?;
        let volume = Volume::attach_named(self.0, &what.snapshot, &snapshot.named(), Mode::Read)?;
        let mut begin = Begin {
            guid: guid(kernel, &snapshot)?,
            base: base.as_ref().map_or([0; 16], |(_, guid)| *guid),
            made_ms: u64::try_from(snapshot.made.as_millis()).unwrap_or(u64::MAX),
            volume: snapshot.volume.clone(),
            snapshot: snapshot.name.clone(),
            blocks: snapshot.bytes / u64::from(BLOCK),
            ..Begin::default()
        };
        goes_on(what, &mut begin)?;
        let base = base.map(|(base, _)| base);
        Ok(Sending { kernel, volume, base, begin, is_export: false, what: what.clone() })
    }

    /// The stream of raw data of a volume, or of a snapshot like `vm1@monday`. A volume that is written meanwhile
    /// comes as no single moment had it.
    ///
    /// # Errors
    /// `NotFound`; the store's.
    pub fn exporting(&self, name: &str) -> Result<Sending<'s>> {
        let volume = match Volume::attach(self.0, name, Mode::Read) {
            Err(none) if none.kind() == Kind::NotFound && name.contains('@') => {
                Snapshots::of(self.0).attach(name)?
            }
            attached => attached?,
        };
        let begin = Begin { blocks: volume.bytes() / u64::from(BLOCK), ..Begin::default() };
        let what = SendWhat::default();
        Ok(Sending { kernel: self.kernel(), volume, base: None, begin, is_export: true, what })
    }

    /// Sends a snapshot.
    ///
    /// # Errors
    /// As [`sending`](Self::sending) and [`Sending::send_to`].
    pub fn send(&self, what: &SendWhat, out: &mut dyn Write) -> Result<Totals> {
        let sending = self.sending(what)?;
        let writer = sending.send_to(sending.writer(out)?)?;
        writer.end(sending.begin().blocks)
    }
}
