//! The changes of blocks in a checkpoint: touches of them, and their sums.

use onefold_core::Pba;

use crate::{
    format::{
        domain_entry::DOMAIN_ENTRIES,
        page::{Form, Table},
        record::{from_low_bytes, low_bytes},
    },
    index::hash_of,
};

/// The place of a domain among those with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u8);

impl Slot {
    /// Of a domain without limits.
    pub(crate) const NONE: Slot = Slot(DOMAIN_ENTRIES as u8);

    pub(crate) fn of(place: usize) -> Slot {
        Slot(place.min(DOMAIN_ENTRIES) as u8)
    }

    pub(crate) fn place(self) -> Option<usize> {
        (self != Slot::NONE).then_some(usize::from(self.0))
    }
}

/// A change of a block in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// An address of a domain names it from now on.
    Raise(Slot),
    /// An address of a domain named it until now.
    Lower(Slot),
    /// Whether it is free is to be found out, whatever its count does.
    Examine,
    /// The same; and it is new, raw or in a carrier.
    New { carried: bool },
    /// The same; and it is a copy of a block that is moved.
    Copy,
    /// The same; and it is a pack, a copy of several.
    Pack,
    /// An address names a fragment of it from now on. Domains are of sealed stores, which have no packs.
    RaiseFragment,
    /// An address named a fragment of it until now.
    LowerFragment,
}

impl Touch {
    const RAISE: u8 = 4;
    const LOWER: u8 = Touch::RAISE + DOMAIN_ENTRIES as u8 + 1;
    const PACKS: u8 = Touch::LOWER + DOMAIN_ENTRIES as u8 + 1;

    /// An address names this from now on: a block, or a fragment of one.
    pub(crate) fn raise(form: Form, slot: Slot) -> Touch {
        if form.is_packed() { Touch::RaiseFragment } else { Touch::Raise(slot) }
    }

    /// An address named this until now.
    pub(crate) fn lower(form: Form, slot: Slot) -> Touch {
        if form.is_packed() { Touch::LowerFragment } else { Touch::Lower(slot) }
    }

    fn encode(self) -> u8 {
        match self {
            Touch::Examine => 0,
            Touch::New { carried } => 1 + u8::from(carried),
            Touch::Copy => 3,
            Touch::Raise(slot) => Touch::RAISE + slot.0,
            Touch::Lower(slot) => Touch::LOWER + slot.0,
            Touch::Pack => Touch::PACKS,
            Touch::RaiseFragment => Touch::PACKS + 1,
            Touch::LowerFragment => Touch::PACKS + 2,
        }
    }

    fn decode(byte: u8) -> Touch {
        match byte {
            0 => Touch::Examine,
            1 | 2 => Touch::New { carried: byte == 2 },
            3 => Touch::Copy,
            Touch::RAISE..Touch::LOWER => Touch::Raise(Slot(byte - Touch::RAISE)),
            Touch::LOWER..Touch::PACKS => Touch::Lower(Slot(byte - Touch::LOWER)),
            Touch::PACKS => Touch::Pack,
            _ if byte == Touch::PACKS + 1 => Touch::RaiseFragment,
            _ => Touch::LowerFragment,
        }
    }
}

/// A touch of one block, in 11 bytes: a record makes three of them.
#[derive(Clone, Copy)]
pub(crate) struct Delta {
    pba: [u8; 5],
    hash: [u8; 5],
    touch: u8,
}

const _: () = assert!(size_of::<Delta>() == 11);

impl Delta {
    /// A change of the count of a block whose fingerprint begins with `prefix`.
    pub(crate) fn new(pba: Pba, touch: Touch, prefix: u64) -> Delta {
        Delta { pba: low_bytes(pba.0), hash: low_bytes(hash_of(prefix)), touch: touch.encode() }
    }

    pub(crate) fn pba(&self) -> Pba {
        Pba(from_low_bytes(&self.pba))
    }

    pub(crate) fn hash(&self) -> u64 {
        from_low_bytes(&self.hash)
    }

    /// True when an address names a fragment of the block from now on.
    pub(crate) fn raises_fragment(&self) -> bool {
        self.touch == Touch::RaiseFragment.encode()
    }
}

/// The sum of the touches of one block.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) difference: i64,
    pub(crate) examine: bool,
    /// New, and whether in a carrier.
    pub(crate) new: Option<bool>,
    /// A copy of a block that is moved.
    pub(crate) copy: bool,
    /// A pack, or a block of which somebody names a fragment.
    pub(crate) pack: bool,
    /// As far as anybody who touched it knows.
    pub(crate) hash: Option<u64>,
    /// Its domain, as far as anybody who touched it knows.
    pub(crate) domain: Option<Slot>,
}

impl Sum {
    pub(crate) fn of(deltas: &[Delta]) -> Sum {
        let mut sum = Sum::default();
        for delta in deltas {
            let touch = Touch::decode(delta.touch);
            match touch {
                Touch::Raise(_) => sum.difference += 1,
                Touch::Lower(_) => sum.difference -= 1,
                Touch::Examine => sum.examine = true,
                Touch::New { carried } => (sum.examine, sum.new) = (true, Some(carried)),
                Touch::Copy => (sum.examine, sum.new, sum.copy) = (true, Some(false), true),
                Touch::Pack => {
                    (sum.examine, sum.new, sum.copy) = (true, Some(true), true);
                    sum.pack = true;
                }
                Touch::RaiseFragment => (sum.difference, sum.pack) = (sum.difference + 1, true),
                Touch::LowerFragment => (sum.difference, sum.pack) = (sum.difference - 1, true),
            }
            if let Touch::Raise(slot) | Touch::Lower(slot) = touch
                && slot != Slot::NONE
            {
                sum.domain = Some(slot);
            }
            // Nobody finds a pack, or a fragment, by its fingerprint.
            let is_of_pack =
                matches!(touch, Touch::Pack | Touch::RaiseFragment | Touch::LowerFragment);
            if touch != Touch::Examine && !is_of_pack {
                sum.hash = Some(delta.hash());
            }
        }
        sum
    }
}

/// The leaf that holds the count of a block.
pub(crate) fn leaf_of(delta: &Delta) -> u64 {
    delta.pba().0 / Table::References.per_leaf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_is_one_byte_and_says_all() {
        let slots = (0..DOMAIN_ENTRIES).map(Slot::of).chain([Slot::NONE]);
        let of_domains = slots.flat_map(|slot| [Touch::Raise(slot), Touch::Lower(slot)]);
        let news = [false, true].map(|carried| Touch::New { carried });
        let packs = [Touch::Pack, Touch::RaiseFragment, Touch::LowerFragment];
        let others = [Touch::Examine, Touch::Copy, news[0], news[1]].into_iter().chain(packs);
        let all: Vec<Touch> = of_domains.chain(others).collect();
        assert!(all.iter().all(|&touch| Touch::decode(touch.encode()) == touch));
        let mut codes: Vec<u8> = all.iter().map(|touch| touch.encode()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all.len());
    }
}
