//! How many chunks there are, without a look at each.
//!
//! An object store that counts its pools is asked. Of one that lists names in their order the density is
//! measured: names of chunks begin with a hash, so they are spread evenly, and a page of names that begins
//! anywhere tells how far apart they are.

use onefold_core::{
    Error, Result,
    object::{ObjectName, Pool, Read, ReadPart, Refusal, Seen},
};

use super::sample::{Chance, Sum};
use crate::{format::Chunk, session::Session};

/// Chunks up to which each is looked at.
const LOOKED_AT: u64 = 20_000;

/// What names of chunks begin with, before the hash.
const PREFIX: &str = "c.0.";

/// Places at which names are read, and how many names at each: with 4096 names the error is about 3 %.
const PLACES: usize = 64;
const AT_EACH: usize = 64;

/// Chunks and their bytes; each with the distance within which the truth lies with 95 %.
pub(super) struct Estimated {
    pub(super) chunks: (u64, u64),
    pub(super) bytes: (u64, u64),
}

/// Counts the chunks by the object store's own counts, or by a sample. `None` where there are few, or no
/// other way than a look at each. Chunks that can't be read are given to `unread`.
pub(super) fn estimate(
    session: &Session,
    seed: u64,
    unread: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Option<Estimated>, Refusal> {
    let store = session.kernel().store();
    let held = match store.held(Pool::Chunks) {
        // Who may not ask for the counts may read the pool all the same.
        Err(Refusal::Denied(_)) => None,
        held => held?,
    };
    match held {
        Some(held) if held.objects > LOOKED_AT => {
            Ok(Some(Estimated { chunks: (held.objects, 0), bytes: (held.bytes, 0) }))
        }
        None if store.lists_by_name() && are_many(session)? => {
            by_density(session, seed, unread).map(Some)
        }
        _ => Ok(None),
    }
}

/// True when the pool lists more names than are looked at one by one.
fn are_many(session: &Session) -> Result<bool, Refusal> {
    let (mut from, mut names) = (None, 0);
    loop {
        let page = session.kernel().store().list(Pool::Chunks, from.as_deref(), 1000)?;
        names += page.names.len() as u64;
        from = page.next;
        if from.is_none() || names > LOOKED_AT {
            return Ok(names > LOOKED_AT);
        }
    }
}

/// The first bits of the hash in the name of a chunk, sealed or not.
fn place_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(PREFIX)?.get(..16)?, 16).ok()
}

/// Estimates how many chunks there are from how far names are apart, and their bytes from those of the
/// names that were read.
fn by_density(
    session: &Session,
    seed: u64,
    unread: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Estimated, Refusal> {
    let (kernel, mut chance) = (session.kernel(), Chance(seed | 1));
    let (mut names, mut gaps, mut bytes) = (0u64, Sum::default(), Sum::default());
    for _ in 0..PLACES {
        let begin = chance.next();
        let from = format!("{PREFIX}{begin:016x}");
        let page = kernel.store().list(Pool::Chunks, Some(&from), AT_EACH)?;
        // Without a name behind them the row ends there.
        let end = page.next.as_deref().and_then(place_of).unwrap_or(u64::MAX);
        gaps.add(end.saturating_sub(begin));
        names += page.names.len() as u64;
        let chunks = page.names.iter().filter(|name| Chunk::parse(name).is_some());
        let read =
            |name: &String| Read { object: ObjectName::chunk(name), parts: vec![ReadPart::Stat] };
        for answer in kernel.read_all(&chunks.map(read).collect::<Vec<_>>()) {
            match answer {
                Ok(answer) => {
                    if let Some(Seen::Stat { bytes: length, .. }) = answer.seen.first() {
                        bytes.add(*length);
                    }
                }
                Err(Refusal::Missing) => {}
                Err(Refusal::Failed(error)) => unread(error).map_err(Refusal::Failed)?,
                Err(refusal) => return Err(refusal),
            }
        }
    }
    let (gap, gap_error) = gaps.mean();
    let (length, length_error) = bytes.mean();
    // The names that end the gaps are no part of a sample of so long gaps: one less is without bias.
    let found = names.saturating_sub(1) as f64 / PLACES as f64;
    let chunks = found / gap.max(1.0) * 2f64.powi(64);
    let share = |error: f64, of: f64| if of == 0.0 { 0.0 } else { error / of };
    let (of_gap, of_length) = (share(gap_error, gap), share(length_error, length));
    Ok(Estimated {
        chunks: (chunks as u64, (chunks * of_gap) as u64),
        bytes: ((chunks * length) as u64, (chunks * length * of_gap.hypot(of_length)) as u64),
    })
}
