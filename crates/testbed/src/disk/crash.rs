//! The part of the unflushed writes that a power failure leaves.
//!
//! The choice is one sector mask for each unflushed block write: 0 is lost, 255 is kept, all else
//! is torn. The masks are applied in the order in which the writes came. That covers every order in
//! which a disk may write its cache back: a sector ends up as one of its versions, and a choice of
//! masks exists for each (keep that one, lose the later ones).

use super::Bytes;
use crate::Rng;

/// A block write that no flush has made durable.
#[derive(Clone)]
pub struct Unflushed {
    /// The number of the write call, counted from 0 since the disk was made.
    pub call: u64,
    /// The block's address.
    pub at: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A mask for each of `unflushed`, in one of the patterns that crash bugs hide behind.
pub(super) fn masks(unflushed: &[Unflushed], rng: &mut Rng) -> Vec<u8> {
    let n = unflushed.len();
    let one = rng.below(n as u64) as usize;
    let pivot = unflushed.get(one).map_or(0, |write| write.call);
    let shape = rng.below(12);
    let salt = rng.next();
    let mut mask = |index: usize, write: &Unflushed| match shape {
        0 => u8::MAX,
        1 => 0,
        2 => coin(rng.percent(50)),
        3 => match rng.below(3) {
            0 => 0,
            1 => u8::MAX,
            _ => rng.next() as u8,
        },
        4 => coin(index != one),
        5 => coin(index == one),
        6 => coin(write.call >= pivot),
        7 => coin(write.call < pivot),
        8 if index == one => tear(rng),
        8 => u8::MAX,
        9 if index == one => tear(rng),
        9 => 0,
        // Each call wholly kept or wholly lost.
        10 => coin(Rng::new(salt ^ write.call).percent(50)),
        _ => coin(rng.percent(85)),
    };
    unflushed.iter().enumerate().map(|(index, write)| mask(index, write)).collect()
}

/// All or nothing.
fn coin(keep: bool) -> u8 {
    if keep { u8::MAX } else { 0 }
}

/// A torn block: most often exactly one sector is lost or kept.
fn tear(rng: &mut Rng) -> u8 {
    let one = 1 << rng.below(8);
    match rng.below(4) {
        0 => one,
        1 => !one,
        // A prefix, as when the power failed in the middle of the transfer.
        2 => (1 << rng.within(1, 7)) - 1,
        _ => rng.next() as u8,
    }
}
