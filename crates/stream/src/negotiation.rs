//! The beginning of a negotiated stream, and what the receiver answers.
//!
//! A sender names blocks by their fingerprints before it sends them, so that only what is missing goes
//! over the wire. Fingerprints depend on a store's secret. Both sides prove first that they have the
//! same one and make fingerprints alike; the sender tells no fingerprint before, and the receiver
//! answers nothing.
//!
//! | from | bytes | what |
//! |---|---|---|
//! | sender | 16 | `onefold stream`, 0, 2, or 4 when it skips damage |
//! | | 32 | its nonce |
//! | receiver | 16 | `onefold answer`, 0, 1 |
//! | | 32 | its nonce |
//! | | 32 | its proof |
//! | sender | 32 | its proof, and then its frames |
//!
//! A proof is keyed BLAKE3 of one of four words and both nonces, whose key is made by BLAKE3's key
//! derivation of the secret and the number of the algorithm of fingerprints: `receiver` and `sender`
//! for the proofs, and `stream` and `answers` for the keys of the first frame of each direction. So
//! nobody between the two, who passes their proofs on, can change or add a frame.
//!
//! Answers are frames. *Missing* answers an offer: its number of blocks is that of the fingerprints,
//! its payload a bit for each, lowest first, 1 when the block is missing; bits behind the last one are
//! zero. *Done* says that the snapshot is durable. A receiver that fails closes its side.

use std::io::{Read, Write};

use onefold_core::{Algorithm, Error, Kind, Result, checksum};

use crate::{
    Form,
    frames::{FrameReader, FrameWriter, Of, fill, unwritten},
};

/// The beginning of what a receiver answers.
const ANSWER_MAGIC: [u8; 16] = *b"onefold answer\0\x01";

/// The purpose of the key that is derived from a store's secret.
const CONTEXT: &str = "onefold 2026-11 which blocks are missing";

const NONCE_BYTES: usize = 32;

/// Both nonces, and the key that both sides have when their stores have one secret.
struct Agreed {
    key: [u8; 32],
    nonces: [u8; 2 * NONCE_BYTES],
}

impl Agreed {
    fn new(
        secret: &[u8; 32],
        algorithm: Algorithm,
        sender: &[u8; NONCE_BYTES],
        receiver: &[u8; NONCE_BYTES],
    ) -> Agreed {
        let mut nonces = [0; 2 * NONCE_BYTES];
        nonces[..NONCE_BYTES].copy_from_slice(sender);
        nonces[NONCE_BYTES..].copy_from_slice(receiver);
        let mut material = secret.to_vec();
        material.push(algorithm.code());
        Agreed { key: checksum::derived_key(CONTEXT, &material), nonces }
    }

    fn of(&self, word: &str) -> [u8; 32] {
        let mut bytes = word.as_bytes().to_vec();
        bytes.extend_from_slice(&self.nonces);
        checksum::chunk_name(&self.key, &bytes)
    }

    /// True when the other side has made this proof, compared in a time that tells nothing.
    fn proves(&self, word: &str, proof: &[u8; 32]) -> bool {
        let differing = self.of(word).iter().zip(proof).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

/// The sender's side of the answers.
pub struct Asking<R: Read>(FrameReader<R>);

impl<R: Read> Asking<R> {
    /// Begins to negotiate with the receiver; gives the key of the stream's first frame.
    ///
    /// # Errors
    /// `InvalidInput` when the receiver's store has another secret; `Corrupt` for what is no answer;
    /// `Unsupported` for one of a newer version; `Io`.
    pub fn begin(
        out: &mut impl Write,
        mut answers: R,
        secret: &[u8; 32],
        algorithm: Algorithm,
        nonce: &[u8; NONCE_BYTES],
        skips: bool,
    ) -> Result<(Asking<R>, [u8; 32])> {
        let form = Form { negotiated: true, skips };
        out.write_all(&form.magic()).map_err(unwritten)?;
        out.write_all(nonce).map_err(unwritten)?;
        out.flush().map_err(unwritten)?;
        let mut magic = [0; ANSWER_MAGIC.len()];
        fill(&mut answers, &mut magic).map_err(silent)?;
        if magic != ANSWER_MAGIC {
            return Err(if magic[..15] == ANSWER_MAGIC[..15] {
                Error::new(Kind::Unsupported, "the answer is of a newer version of onefold receive")
            } else {
                let message =
                    "what the command of --negotiate writes is no answer of onefold receive";
                Error::new(Kind::Corrupt, message)
            });
        }
        let (mut other, mut proof) = ([0; NONCE_BYTES], [0; 32]);
        fill(&mut answers, &mut other).map_err(silent)?;
        fill(&mut answers, &mut proof).map_err(silent)?;
        let agreed = Agreed::new(secret, algorithm, nonce, &other);
        if !agreed.proves("receiver", &proof) {
            return Err(strangers("the store that receives"));
        }
        out.write_all(&agreed.of("sender")).map_err(unwritten)?;
        let reader = FrameReader::new(answers, agreed.of("answers"));
        Ok((Asking(reader), agreed.of("stream")))
    }

    /// The answer to an offer of so many blocks: for each whether it is missing.
    ///
    /// # Errors
    /// `Corrupt` for another answer; `Io` when none comes.
    pub fn missing(&mut self, blocks: usize) -> Result<Vec<bool>> {
        let (header, bits) = self.0.raw().map_err(silent)?;
        let spare = |at: usize| bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        let whole = header.kind == Of::Missing
            && header.first == 0
            && header.blocks == blocks as u64
            && bits.len() == blocks.div_ceil(8)
            && !(blocks..bits.len() * 8).any(spare);
        if !whole {
            return Err(senseless());
        }
        Ok((0..blocks).map(spare).collect())
    }

    /// Waits until the snapshot is durable there.
    ///
    /// # Errors
    /// As [`missing`](Self::missing).
    pub fn done(&mut self) -> Result<()> {
        let (header, payload) = self.0.raw().map_err(silent)?;
        let done = header.kind == Of::Done && payload.is_empty();
        if done { Ok(()) } else { Err(senseless()) }
    }
}

/// The receiver's side of the answers.
pub struct Answering<W: Write>(FrameWriter<W>);

impl<W: Write> Answering<W> {
    /// Welcomes a sender, of whose stream the first 16 bytes were read; gives the key of the stream's
    /// first frame.
    ///
    /// # Errors
    /// `InvalidInput` when the sender's store has another secret; `Io`.
    pub fn begin(
        input: &mut impl Read,
        mut out: W,
        secret: &[u8; 32],
        algorithm: Algorithm,
        nonce: &[u8; NONCE_BYTES],
    ) -> Result<(Answering<W>, [u8; 32])> {
        let (mut other, mut proof) = ([0; NONCE_BYTES], [0; 32]);
        fill(input, &mut other)?;
        let agreed = Agreed::new(secret, algorithm, &other, nonce);
        for bytes in [&ANSWER_MAGIC[..], nonce, &agreed.of("receiver")] {
            out.write_all(bytes).map_err(unwritten)?;
        }
        out.flush().map_err(unwritten)?;
        fill(input, &mut proof)?;
        if !agreed.proves("sender", &proof) {
            return Err(strangers("the store that sends"));
        }
        Ok((Answering(FrameWriter::new(out, agreed.of("answers"))), agreed.of("stream")))
    }

    /// Answers an offer.
    pub fn missing(&mut self, missing: &[bool]) -> Result<()> {
        let mut bits = vec![0; missing.len().div_ceil(8)];
        for (n, _) in missing.iter().enumerate().filter(|(_, missing)| **missing) {
            bits[n / 8] |= 1 << (n % 8);
        }
        self.0.put(Of::Missing, 0, 0, missing.len() as u64, &bits)?;
        self.0.flush()
    }

    /// The snapshot of so many blocks is durable.
    pub fn done(&mut self, blocks: u64) -> Result<()> {
        self.0.put(Of::Done, 0, 0, blocks, &[])?;
        self.0.flush()
    }
}

fn strangers(who: &str) -> Error {
    let message = format!(
        "{who} has another secret than this one, so neither knows the other's fingerprints: only a \
         store of `onefold create block --like` has the same. Send without --negotiate"
    );
    Error::new(Kind::InvalidInput, message)
}

fn senseless() -> Error {
    Error::new(Kind::Corrupt, "the receiver's answer makes no sense")
}

/// A receiver that ended, or sent damage, as the sender tells it.
fn silent(error: Error) -> Error {
    let message = match error.kind() {
        Kind::Corrupt => "the receiver's answer is damaged",
        _ => "the receive ended before it was done; what it printed says why",
    };
    Error::new(error.kind(), message).caused_by(error)
}

#[cfg(test)]
#[path = "negotiation_tests.rs"]
mod tests;
