//! Sending: a snapshot, or what changed between two, as a stream; an export, as a stream of raw data.
//!
//! Every block is read as a client reads it, and so verified. Damage ends the stream, or with
//! [`SendWhat::skip_damaged`] its blocks are sent as lost.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use onefold_core::{Algorithm, Error, Kind, Result, VolumeId, key_memory::Key};
use onefold_stream::{
    OFFER_BLOCKS_MAX, OFFER_RUNS_MAX, Sender, Sent, goes_on, negotiation::Asking, read_ahead,
};

use super::{BlockVolume, Copies};
use crate::{
    Begin, Offer, Piece, PieceKind, SendWhat, StreamWriter, Totals, Transfers, VolumeState,
};

/// Blocks whose fingerprints are looked up at once.
const LOOK_BLOCKS: u64 = 4096;

impl Copies<'_> {
    /// Sends a snapshot.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for a token of another snapshot; `Corrupt` when data is damaged;
    /// `Stopped` when a snapshot is deleted meanwhile; those of `out`.
    pub fn send(&self, what: &SendWhat, out: &mut dyn Write) -> Result<Totals> {
        let pair = self.pair(what)?;
        let skips = what.skip_damaged;
        let writer = StreamWriter::begin_as(out, skips, &pair.begin, !what.plain)?;
        let writer = read_ahead(writer, |parcels| {
            let mut sender = Sender::of(&pair.volume, parcels, Some(self.memory()), skips);
            self.all(&pair, skips, |piece| sender.piece(&piece, &[]))
        })?;
        writer.end(pair.begin.blocks)
    }

    /// Sends to a receiver whose answers say which blocks it has: only the others go out. `nonce` is
    /// random. On return the snapshot is durable there.
    ///
    /// # Errors
    /// As [`send`](Self::send); `InvalidInput` when the other store has another secret; `Unsupported` in
    /// a store that compares bytes; `Corrupt` for answers without sense; `Io` when no answer comes.
    pub fn negotiate(
        &self,
        what: &SendWhat,
        nonce: &[u8; 32],
        mut out: &mut dyn Write,
        answers: impl Read,
    ) -> Result<Totals> {
        self.must_trust_fingerprints()?;
        let pair = self.pair(what)?;
        let (secret, algorithm) = self.fingerprints_by();
        let skips = what.skip_damaged;
        let (mut asking, key) = Asking::begin(&mut out, answers, &secret, algorithm, nonce, skips)?;
        let writer = StreamWriter::begin_negotiated(out, key, skips, &pair.begin, !what.plain)?;
        let sender = Sender::of(&pair.volume, writer, Some(self.memory()), skips);
        let mut queue = Queue { sender, pieces: Vec::new(), blocks: 0 };
        let mut settle = |queue: &mut Queue<'_, _>| {
            let Some(offer) = self.offer(pair.volume.id(), &queue.pieces)? else {
                return queue.settle(&[]);
            };
            queue.sender.writer.offer(&offer)?;
            queue.settle(&asking.missing(offer.fingerprints.len())?)
        };
        self.all(&pair, skips, |piece| {
            let mut rest = piece;
            while rest.blocks > 0 {
                queue.take(&mut rest);
                if queue.is_full() {
                    settle(&mut queue)?;
                }
            }
            Ok(())
        })?;
        settle(&mut queue)?;
        let totals = queue.sender.writer.end(pair.begin.blocks)?;
        asking.done()?;
        Ok(totals)
    }

    /// The snapshots that a stream is made of, held until it ends, and its beginning.
    fn pair(&self, what: &SendWhat) -> Result<Pair> {
        self.0.find_snapshot(&what.snapshot)?;
        let volume = BlockVolume::open(self.0, &what.snapshot)?;
        // Nobody deletes it meanwhile, unless by force.
        let base = what.from.as_ref().map(|from| {
            self.0.find_snapshot(from)?;
            BlockVolume::open(self.0, from)
        });
        let base = base.transpose()?;
        let of = self.0.engine.volume(volume.id())?;
        let mut begin = self.about(&of)?;
        if let Some(base) = &base {
            begin.base = guid(&self.0.engine.volume(base.id())?);
        }
        goes_on(what, &mut begin)?;
        Ok(Pair { volume, base, begin })
    }

    /// Visits all pieces that are to be sent, in steps that hold no version of the tables.
    fn all(
        &self,
        pair: &Pair,
        skips: bool,
        mut visit: impl FnMut(Piece) -> Result<()>,
    ) -> Result<()> {
        let (blocks, mut at) = (pair.begin.blocks, pair.begin.start);
        while at < blocks {
            pair.base.as_ref().map_or(Ok(()), BlockVolume::check)?;
            pair.volume.check()?;
            let base = pair.base.as_ref().map(BlockVolume::id);
            let (transfers, of) = (Transfers::of(&self.0.engine), pair.volume.id());
            let found = if skips {
                transfers.pieces_past_damage(base, of, at)?
            } else {
                transfers.pieces(base, of, at)?
            };
            found.pieces.into_iter().try_for_each(&mut visit)?;
            at = found.next.max(at + 1);
        }
        Ok(())
    }

    /// The fingerprints of what some pieces hold; none when that is nothing.
    fn offer(&self, of: VolumeId, pieces: &[Piece]) -> Result<Option<Offer>> {
        let mut offer = Offer::default();
        for piece in pieces.iter().filter(|piece| piece.kind == PieceKind::Data) {
            offer.runs.push((piece.first, piece.blocks));
            let (mut at, end) = (piece.first, piece.first + piece.blocks);
            while at < end {
                let count = (end - at).min(LOOK_BLOCKS);
                let found = Transfers::of(&self.0.engine).fingerprints(of, at, count)?;
                offer.fingerprints.extend(found.into_iter().map(Option::unwrap_or_default));
                at += count;
            }
        }
        Ok((!offer.runs.is_empty()).then_some(offer))
    }

    /// What fingerprints are made by.
    pub(super) fn fingerprints_by(&self) -> (Arc<Key>, Algorithm) {
        let kernel = &self.0.engine.kernel;
        (kernel.identity.secret.clone(), kernel.fixed.algorithm)
    }

    /// Refuses to tell or take fingerprints where they alone name no content.
    pub(super) fn must_trust_fingerprints(&self) -> Result<()> {
        if !self.0.engine.kernel.fixed.compares_bytes() {
            return Ok(());
        }
        let message = "this store compares the bytes of duplicates (--verify bytes), so a fingerprint \
                       does not say which block is meant: send without --negotiate";
        Err(Error::new(Kind::Unsupported, message))
    }

    fn memory(&self) -> Sent {
        Sent::new(self.0.engine.kernel.identity.secret.clone())
    }

    /// Writes what a volume, or a snapshot like `vm1@monday`, holds as a stream of raw data. A volume
    /// that is written meanwhile comes as no single moment had it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn export(&self, name: &str, out: &mut dyn Write) -> Result<Totals> {
        let volume = BlockVolume::open(self.0, name)?;
        let of = self.0.engine.volume(volume.id())?;
        let begin = Begin { blocks: of.blocks, ..Begin::default() };
        let writer = StreamWriter::begin(out, &begin, false)?;
        let writer = read_ahead(writer, |parcels| {
            let mut sender = Sender::of(&volume, parcels, None, false);
            let mut at = 0;
            while at < of.blocks {
                volume.check()?;
                let found = Transfers::of(&self.0.engine).pieces(None, volume.id(), at)?;
                for piece in found.pieces {
                    // The volume may have grown since the export began.
                    let blocks = piece.blocks.min(of.blocks.saturating_sub(piece.first));
                    if blocks > 0 {
                        sender.piece(&Piece { blocks, ..piece }, &[])?;
                    }
                }
                at = found.next.max(at + 1);
            }
            Ok(())
        })?;
        writer.end(of.blocks)
    }

    /// The beginning of a stream of a snapshot.
    fn about(&self, of: &VolumeState) -> Result<Begin> {
        let origin = of.snapshot.ok_or_else(|| Error::new(Kind::InvalidInput, "no snapshot"))?;
        Ok(Begin {
            guid: origin.guid,
            base: [0; 16],
            made_ms: origin.made_ms,
            volume: self.0.engine.volume(origin.volume)?.name,
            snapshot: of.name.clone(),
            blocks: of.blocks,
            start: 0,
            no_dedup: of.no_dedup.clone(),
        })
    }
}

/// The number that tells a snapshot from any other.
pub(super) fn guid(snapshot: &VolumeState) -> [u8; 16] {
    snapshot.snapshot.map_or([0; 16], |origin| origin.guid)
}

/// Who is sent.
struct Pair {
    volume: BlockVolume,
    base: Option<BlockVolume>,
    begin: Begin,
}

/// Pieces of which the receiver is asked together.
struct Queue<'a, W: Write> {
    sender: Sender<'a, StreamWriter<W>>,
    pieces: Vec<Piece>,
    /// Blocks of data among them.
    blocks: u64,
}

impl<W: Write> Queue<'_, W> {
    /// Takes of a piece what has room.
    fn take(&mut self, rest: &mut Piece) {
        let room = match rest.kind {
            PieceKind::Data => OFFER_BLOCKS_MAX - self.blocks,
            _ => rest.blocks,
        };
        let taken = Piece { blocks: rest.blocks.min(room), ..*rest };
        if taken.kind == PieceKind::Data {
            self.blocks += taken.blocks;
        }
        (rest.first, rest.blocks) = (rest.first + taken.blocks, rest.blocks - taken.blocks);
        self.pieces.push(taken);
    }

    fn is_full(&self) -> bool {
        self.blocks >= OFFER_BLOCKS_MAX || self.pieces.len() >= OFFER_RUNS_MAX
    }

    /// Sends them; of their data in order it is known whether it is missing.
    fn settle(&mut self, missing: &[bool]) -> Result<()> {
        let mut rest = missing;
        for piece in std::mem::take(&mut self.pieces) {
            let of = if piece.kind == PieceKind::Data { piece.blocks as usize } else { 0 };
            let (these, others) = rest.split_at(of);
            rest = others;
            self.sender.piece(&piece, these)?;
        }
        self.blocks = 0;
        Ok(())
    }
}
