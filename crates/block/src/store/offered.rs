//! The receiver's side of offers: which blocks it has, and that the sender means just these.
//!
//! A block that is there is written to the receive at once, before the sender hears of it, so that
//! nobody else's change of this store can take it away. A held frame proves what it must be.

use std::{collections::VecDeque, io::Write};

use onefold_core::{Block, BlockRead, Error, Kind, Lba, Result, VolumeId};
use onefold_stream::negotiation::Answering;

use super::Copies;
use crate::{Content, Frame, HeldProof, Offer, Transfers};

/// Offered blocks that are looked for, and written, together.
const LOOK_BLOCKS: usize = 256;

/// What was offered last, and where answers go.
pub(super) struct Offered<'w> {
    /// None of a sender that asks nothing.
    answering: Option<Answering<&'w mut dyn Write>>,
    /// Offered blocks that are there, and of which the sender has not spoken since.
    there: VecDeque<u64>,
    /// First block and number of those of which the frame at work speaks.
    unproved: (u64, u64),
}

impl<'w> Offered<'w> {
    pub(super) fn new(answering: Option<Answering<&'w mut dyn Write>>) -> Offered<'w> {
        Offered { answering, there: VecDeque::new(), unproved: (0, 0) }
    }

    /// True when the sender asks.
    pub(super) fn is_asked(&self) -> bool {
        self.answering.is_some()
    }

    /// Answers an offer; what is there becomes part of the receive.
    pub(super) fn answer(
        &mut self,
        copies: &Copies<'_>,
        id: VolumeId,
        offer: &Offer,
    ) -> Result<()> {
        self.nothing_left()?;
        let Some(answering) = &mut self.answering else { return Err(senseless()) };
        let domain = copies.0.engine.volume(id)?.domain;
        let mut missing = Vec::with_capacity(offer.fingerprints.len());
        let mut lbas = offer.blocks();
        for wanted in offer.fingerprints.chunks(LOOK_BLOCKS) {
            let found = Transfers::of(&copies.0.engine).contents(domain, wanted)?;
            missing.extend(found.iter().map(Option::is_none));
            let there: Vec<(u64, Block)> = found
                .into_iter()
                .zip(&mut lbas)
                .filter_map(|(found, lba)| Some((lba, found?)))
                .collect();
            self.there.extend(there.iter().map(|(lba, _)| *lba));
            for run in there.chunk_by(|one, next| one.0 + 1 == next.0) {
                write_blocks(copies, id, run[0].0, run.iter().map(|(_, block)| block))?;
            }
        }
        answering.missing(&missing)
    }

    /// Looks whether a frame says of the blocks that are there that they are.
    pub(super) fn frame(&mut self, frame: &Frame) -> Result<()> {
        let end = frame.first + frame.blocks;
        let held = matches!(frame.content, Content::Held(_));
        // The sender can't prove what it can't read: that is lost here, too.
        let lost = frame.content == Content::Lost;
        let mut at = frame.first;
        self.unproved = (at, 0);
        while let Some(&lba) = self.there.front().filter(|&&lba| lba < end) {
            // One before the frame was left out.
            if !(held && lba == at || lost && lba >= frame.first) {
                return Err(senseless());
            }
            self.there.pop_front();
            at = lba + 1;
            // What is lost is read by nobody.
            self.unproved.1 += u64::from(held);
        }
        if held && at != end { Err(senseless()) } else { Ok(()) }
    }

    /// The frame was applied, and with it proved.
    pub(super) fn applied(&mut self) {
        self.unproved = (0, 0);
    }

    /// The stream ended too early: what was not proved to be the sender's goes out of the receive. Else
    /// who knows a fingerprint, and ends the stream otherwise, would have the content.
    pub(super) fn take_back(&mut self, copies: &Copies<'_>, id: VolumeId) -> Result<()> {
        let runs = self.there.make_contiguous().chunk_by(|one, next| one + 1 == *next);
        let runs = runs.map(|run| (run[0], run.len() as u64));
        for (first, blocks) in runs.chain([self.unproved]).filter(|(_, blocks)| *blocks > 0) {
            copies.apply(id, &Frame { first, blocks, content: Content::Hole })?;
        }
        Ok(())
    }

    /// The stream ends, or the next offer comes: all that is there was spoken of.
    pub(super) fn nothing_left(&self) -> Result<()> {
        if self.there.is_empty() { Ok(()) } else { Err(senseless()) }
    }

    /// Tells the sender that the snapshot is durable.
    pub(super) fn done(&mut self, blocks: u64) -> Result<()> {
        self.answering.as_mut().map_or(Ok(()), |answering| answering.done(blocks))
    }
}

/// Compares blocks that were offered, and that the receive has, with what the sender has.
pub(super) fn prove(
    copies: &Copies<'_>,
    id: VolumeId,
    frame: &Frame,
    proof: &HeldProof,
) -> Result<()> {
    let mut blocks = Block::zeroed_vec(frame.blocks as usize);
    let mut reads = [BlockRead { first: Lba(frame.first), into: &mut blocks, result: Ok(()) }];
    copies.0.engine.read(id, &mut reads);
    let [BlockRead { result, .. }] = reads;
    result?;
    if proof.proves(onefold_core::block::bytes(&blocks)) {
        return Ok(());
    }
    let message = format!(
        "what this store has for blocks {} to {} is not what the sender has: send without \
         --negotiate",
        frame.first,
        frame.first + frame.blocks - 1
    );
    Err(Error::new(Kind::Corrupt, message))
}

fn write_blocks<'b>(
    copies: &Copies<'_>,
    id: VolumeId,
    first: u64,
    blocks: impl Iterator<Item = &'b Block>,
) -> Result<()> {
    let data: Vec<u8> = blocks.flat_map(|block| block.0).collect();
    let blocks = data.len() as u64 / 4096;
    copies.apply(id, &Frame { first, blocks, content: Content::Data(data) })
}

fn senseless() -> Error {
    Error::new(Kind::Corrupt, "the stream is damaged: its frames do not fit what was offered")
}
