//! A client that writes and flushes in rounds, a server that is killed in the middle, and what must
//! be there afterwards.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use crate::{nbd::Client, product::Server};

/// Blocks that each round writes.
pub(crate) const BLOCKS: u64 = 4096;

/// Size of the volume.
pub(crate) const VOLUME_BYTES: u64 = BLOCKS * 4096;

/// Rounds that must be flushed before the kill.
const ROUNDS_MIN: u64 = 3;

/// Longest that these rounds may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks of one request.
const PER_REQUEST: u64 = 16;

/// How far the client came.
pub(crate) struct Crash {
    /// Rounds whose flush was answered.
    pub(crate) flushed: u64,
    /// Rounds of which something may have been sent.
    pub(crate) begun: u64,
}

/// Lets a client write rounds, and kills the server in the middle of one.
pub(crate) fn write_and_kill(served: Server, socket: &Path) -> Result<Crash> {
    let (begun, flushed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut client = Client::connect(socket, "busy")?;
    let writer = thread::spawn({
        let (begun, flushed) = (begun.clone(), flushed.clone());
        move || -> Result<()> {
            for round in 1.. {
                begun.store(round, SeqCst);
                let pieces: Vec<(u64, Vec<u8>)> = (0..BLOCKS / PER_REQUEST)
                    .map(|piece| {
                        let first = piece * PER_REQUEST;
                        (
                            first * 4096,
                            (first..first + PER_REQUEST)
                                .flat_map(|block| content(round, block))
                                .collect(),
                        )
                    })
                    .collect();
                client.write_all(pieces.iter().map(|(offset, piece)| (*offset, &piece[..])))?;
                client.flush()?;
                flushed.store(round, SeqCst);
            }
            Ok(())
        }
    });
    let started = Instant::now();
    // Between two rounds nothing is being written; a little after the begin of one, something is.
    while flushed.load(SeqCst) < ROUNDS_MIN || begun.load(SeqCst) == flushed.load(SeqCst) {
        if started.elapsed() > PATIENCE {
            bail!("the client came to round {} only:\n{}", flushed.load(SeqCst), served.said());
        }
        if writer.is_finished() {
            match writer.join() {
                Ok(Err(error)) => return Err(error),
                _ => bail!("the client ended before the server was killed"),
            }
        }
        thread::sleep(Duration::from_micros(200));
    }
    thread::sleep(Duration::from_millis(5));
    served.kill();
    let ended = writer.join();
    ensure!(matches!(ended, Ok(Err(_))), "the client did not notice that the server was killed");
    Ok(Crash { flushed: flushed.load(SeqCst), begun: begun.load(SeqCst) })
}

/// Every block must be of the last flushed round or of a later one that was begun. Returns how many
/// are of a later one.
pub(crate) fn verify(socket: &Path, crash: &Crash) -> Result<u64> {
    let mut client = Client::connect(socket, "busy")?;
    let mut newer = 0;
    client.read_all(VOLUME_BYTES, |offset, piece| {
        for (n, found) in piece.chunks(4096).enumerate() {
            let block = offset / 4096 + n as u64;
            let mut stamp = [0; 8];
            stamp.copy_from_slice(&found[..8]);
            let round = u64::from_le_bytes(stamp);
            ensure!(
                (crash.flushed..=crash.begun).contains(&round),
                "block {block} is of round {round}; round {} was flushed, round {} was begun",
                crash.flushed,
                crash.begun
            );
            ensure!(found == content(round, block), "block {block} is damaged");
            newer += u64::from(round > crash.flushed);
        }
        Ok(())
    })?;
    client.disconnect()?;
    Ok(newer)
}

/// The content of block `block` in round `round`: the round, then bytes that no other block has.
fn content(round: u64, block: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    let mut state = (round << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes[8..3072].chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}
