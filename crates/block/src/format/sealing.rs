//! What seals a store, so that whoever holds its disk learns nothing from it and changes nothing
//! unnoticed.
//!
//! | what | cipher | nonce | proven by |
//! |---|---|---|---|
//! | raw block | AES-256-CTR, key of the domain | prefix of the fingerprint as the map keeps it, address | the fingerprint, which every read compares |
//! | block in a carrier | AES-256-GCM-SIV, another key of the domain | kind, address | its tag, which proves the prefix too |
//! | carrier, page, page of the zone list | AES-256-GCM-SIV, store key | kind, address | its tag, in place of the checksum |
//! | superblock | the same | kind, place, sequence | its tag, at the end |
//!
//! CTR seals only the very bytes whose keyed hash is its counter, so one counter never meets two
//! contents but by a collision of 64 bits at one address. Everything else has GCM-SIV: compressed, one
//! content has many forms, and places are written again.

use onefold_core::{Block, Error, Kind, Pba, Result};
use onefold_seal::{CtrKey, Domain, Keys, Place, Secret, SivKey, TAG_BYTES, Use, block_counter};

/// The domain that each store begins with: of volumes that were made without a word, and of the changes
/// of the catalogue.
pub const FIRST_DOMAIN: u32 = 0;

/// The kind of what is sealed with GCM-SIV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A superblock.
    Superblock,
    /// A page of the zone list.
    ListPage,
    /// A page of a table.
    Page,
    /// A carrier.
    Carrier,
    /// The compressed block in a carrier.
    Payload,
}

impl What {
    fn code(self) -> u8 {
        match self {
            What::Superblock => 1,
            What::ListPage => 2,
            What::Page => 3,
            What::Carrier => 4,
            What::Payload => 5,
        }
    }

    fn at(self, file: u64, number: u64) -> Place {
        Place { kind: self.code(), file, number }
    }
}

/// What a store that breaks its rules leaves out; only simulators set any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flaws {
    /// Counters of raw blocks come from their addresses alone.
    pub(crate) no_prefix: bool,
    /// Counters of raw blocks come from their fingerprints alone.
    pub(crate) no_address: bool,
    /// Raw blocks are written as they are.
    pub(crate) plain_blocks: bool,
    /// Compressed blocks are sealed like raw ones.
    pub(crate) counted_payloads: bool,
    /// Nobody compares the tags of this kind.
    pub(crate) unproven: Option<What>,
    /// All domains have the fingerprints of the first one.
    pub(crate) one_fingerprint: bool,
    /// Data of all domains has the keys of the first one.
    pub(crate) one_key: bool,
    /// Compressed blocks are sealed with the store key.
    pub(crate) payloads_by_store: bool,
    /// What clients write is sealed by the data key that its domain had before.
    pub(crate) writes_by_older: bool,
    /// Compressed blocks are sealed by the data key that their domain had before.
    pub(crate) payloads_by_older: bool,
}

/// The working keys of a domain.
struct DomainKeys {
    number: u32,
    /// Its name; empty for the first one.
    name: String,
    /// The generation of its data key, which rises with each change; numbers are left out.
    generation: u32,
    data: DataKeys,
    /// By the data key that it had before, as long as something may be under it.
    older: Option<DataKeys>,
}

/// The working keys that come from a data key of a domain.
struct DataKeys {
    blocks: CtrKey,
    payloads: SivKey,
    fingerprints: Secret,
}

impl DataKeys {
    fn of(key: &Secret) -> Result<DataKeys> {
        Ok(DataKeys {
            blocks: CtrKey::new(&key.derive(Use::BLOCKS))?,
            payloads: SivKey::new(&key.derive(Use::PAYLOADS))?,
            fingerprints: key.derive(Use::FINGERPRINTS),
        })
    }
}

/// The working keys of a store, and those of its domains.
pub(crate) struct Sealing {
    store: SivKey,
    numbers: Secret,
    /// Those of the first domain.
    first: DomainKeys,
    /// Those of the others that were not erased.
    others: Vec<DomainKeys>,
    /// The number that the next domain gets.
    next_domain: u32,
    /// The number of the key area that they come from.
    area: u64,
    flaws: Flaws,
}

/// The error of whoever wants something of a domain that was erased.
pub(crate) fn erased(domain: u32) -> Error {
    let why = format!(
        "it belongs to domain {domain}, whose key was erased: nobody can read it any more; \
         `onefold volume delete` frees its space"
    );
    Error::new(Kind::Corrupt, why)
}

impl DomainKeys {
    fn of(keys: &Keys, number: u32) -> Result<DomainKeys> {
        let name = keys.domains().iter().find(|one| one.number() == number).map(Domain::name);
        let domain = keys.domain(number).ok_or_else(|| {
            let why = "the domain of the store was erased: nothing in it can be read any more";
            Error::new(Kind::Denied, why)
        })?;
        Ok(DomainKeys {
            number,
            name: name.unwrap_or_default().to_owned(),
            generation: keys.generation(number).unwrap_or(0),
            data: DataKeys::of(domain)?,
            older: keys.older(number).map(DataKeys::of).transpose()?,
        })
    }
}

impl Sealing {
    /// By the open keys of the store.
    pub(crate) fn new(keys: &Keys, flaws: Flaws) -> Result<Sealing> {
        let numbers = keys.domains().iter().map(Domain::number);
        let others = numbers.filter(|&number| number != FIRST_DOMAIN);
        Ok(Sealing {
            store: SivKey::new(&keys.store_key(Use::BLOCK_STORE))?,
            numbers: keys.store_key(Use::BLOCK_NUMBERS),
            first: DomainKeys::of(keys, FIRST_DOMAIN)?,
            others: others.map(|number| DomainKeys::of(keys, number)).collect::<Result<_>>()?,
            next_domain: keys.next_domain(),
            area: keys.sequence(),
            flaws,
        })
    }

    fn all(&self) -> impl Iterator<Item = &DomainKeys> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The working keys of a domain.
    ///
    /// # Errors
    /// `Corrupt`: it was erased.
    fn domain(&self, number: u32) -> Result<&DomainKeys> {
        self.all().find(|one| one.number == number).ok_or_else(|| erased(number))
    }

    /// The keys by which data of a domain is sealed.
    fn data_keys(&self, number: u32) -> Result<&DataKeys> {
        self.domain(number).map(|one| if self.flaws.one_key { &self.first.data } else { &one.data })
    }

    /// The keys by which data of a domain was sealed before its data key was changed.
    fn older_keys(&self, number: u32) -> Option<&DataKeys> {
        self.domain(number).ok()?.older.as_ref()
    }

    /// The keys of fingerprints, each with its domain; the first domain comes first.
    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = (u32, &Secret)> {
        let of = |one| if self.flaws.one_fingerprint { &self.first } else { one };
        self.all().map(move |one| (one.number, &of(one).data.fingerprints))
    }

    /// The keys of the fingerprints of before, of the domains that have two data keys.
    pub(crate) fn older_fingerprints(&self) -> impl Iterator<Item = (u32, &Secret)> {
        self.all().filter_map(|one| Some((one.number, &one.older.as_ref()?.fingerprints)))
    }

    /// The generation of the data key of a domain; 0 when there is no such domain.
    pub(crate) fn generation(&self, number: u32) -> u32 {
        self.domain(number).map_or(0, |one| one.generation)
    }

    /// The highest generation of a data key.
    pub(crate) fn highest_generation(&self) -> u32 {
        self.all().map(|one| one.generation).max().unwrap_or(0)
    }

    /// True when a data key that the store had once is gone, so that there may be blocks that nobody can read.
    pub(crate) fn has_dropped_keys(&self) -> bool {
        self.all().any(|one| one.generation > u32::from(one.older.is_some()))
    }

    /// The name of a domain; `None` when it was erased.
    pub(crate) fn domain_name(&self, number: u32) -> Option<&str> {
        self.domain(number).ok().map(|one| &*one.name)
    }

    /// The number of the domain that has a name.
    pub(crate) fn domain_called(&self, name: &str) -> Option<u32> {
        self.others.iter().find(|one| one.name == name).map(|one| one.number)
    }

    /// The number that the next domain gets.
    pub(crate) fn next_domain(&self) -> u32 {
        self.next_domain
    }

    /// The key of numbers that tell the store's own from others.
    pub(crate) fn numbers(&self) -> &Secret {
        &self.numbers
    }

    /// The number of the key area.
    pub(crate) fn area(&self) -> u64 {
        self.area
    }

    fn counter(&self, prefix: u64, at: Pba) -> [u8; 16] {
        block_counter(
            if self.flaws.no_prefix { 0 } else { prefix },
            if self.flaws.no_address { 0 } else { at.0 },
        )
    }

    /// Seals a raw block for its address; `prefix` is that of its fingerprint as the map keeps it.
    pub(crate) fn seal_raw(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        block: &mut Block,
    ) -> Result<()> {
        if self.flaws.plain_blocks {
            return Ok(());
        }
        if self.flaws.writes_by_older {
            return self.seal_by_older(domain, prefix, at, block);
        }
        self.data_keys(domain)?.blocks.seal(self.counter(prefix, at), &mut block.0)
    }

    /// As [`seal_raw`](Self::seal_raw), by the data key that the domain had before, if it has two. Only planted
    /// bugs do so.
    pub(crate) fn seal_by_older(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        block: &mut Block,
    ) -> Result<()> {
        let keys = self.older_keys(domain).map_or_else(|| self.data_keys(domain), Ok)?;
        keys.blocks.seal(self.counter(prefix, at), &mut block.0)
    }

    /// Opens a raw block, whatever it is: the caller compares its fingerprint.
    pub(crate) fn open_raw(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        block: &mut Block,
    ) -> Result<()> {
        if self.flaws.plain_blocks {
            return Ok(());
        }
        self.data_keys(domain)?.blocks.open(self.counter(prefix, at), &mut block.0)
    }

    /// Opens a raw block, which [`open_raw`](Self::open_raw) has opened, by the key that its domain had before.
    /// False when the domain has one key, and nothing is changed then.
    pub(crate) fn reopen_raw(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        block: &mut Block,
    ) -> Result<bool> {
        let Some(older) = self.older_keys(domain) else { return Ok(false) };
        let counter = self.counter(prefix, at);
        // With counters, opening once more undoes it.
        self.data_keys(domain)?.blocks.open(counter, &mut block.0)?;
        older.blocks.open(counter, &mut block.0)?;
        Ok(true)
    }

    /// Seals what a carrier carries, and puts its tag in front: the first [`TAG_BYTES`] of `payload`
    /// are free for it.
    pub(crate) fn seal_payload(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        payload: &mut [u8],
    ) -> Result<()> {
        let (tag, bytes) = payload.split_at_mut(TAG_BYTES.min(payload.len()));
        let older = self.older_keys(domain).filter(|_| self.flaws.payloads_by_older);
        let keys = older.map_or_else(|| self.data_keys(domain), Ok)?;
        if self.flaws.counted_payloads {
            return keys.blocks.seal(self.counter(prefix, at), bytes);
        }
        let key = if self.flaws.payloads_by_store { &self.store } else { &keys.payloads };
        let proof = key.seal(What::Payload.at(0, at.0), &prefix.to_le_bytes(), bytes)?;
        tag.copy_from_slice(&proof);
        Ok(())
    }

    /// Opens what a carrier carries; `None` when it is not what was sealed, or its domain was erased.
    pub(crate) fn open_payload<'p>(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        payload: &'p mut [u8],
    ) -> Option<&'p [u8]> {
        let (tag, bytes) = payload.split_first_chunk_mut::<TAG_BYTES>()?;
        let keys = self.data_keys(domain).ok()?;
        if self.flaws.counted_payloads {
            keys.blocks.open(self.counter(prefix, at), bytes).ok()?;
            return Some(bytes);
        }
        let place = What::Payload.at(0, at.0);
        let Some(older) = self.older_keys(domain) else {
            let key = if self.flaws.payloads_by_store { &self.store } else { &keys.payloads };
            return key.open(place, &prefix.to_le_bytes(), bytes, tag).then_some(bytes);
        };
        // The tag tells by which of two keys it was sealed. What it does not prove is of no use afterwards.
        let sealed = bytes.to_vec();
        if keys.payloads.open(place, &prefix.to_le_bytes(), bytes, tag) {
            return Some(bytes);
        }
        bytes.copy_from_slice(&sealed);
        older.payloads.open(place, &prefix.to_le_bytes(), bytes, tag).then_some(bytes)
    }

    /// Seals a block of metadata, all but the [`TAG_BYTES`] at `tag_at`, which become its tag.
    pub(crate) fn seal_block(
        &self,
        what: What,
        at: Pba,
        tag_at: usize,
        block: &mut [u8; 4096],
    ) -> Result<[u8; TAG_BYTES]> {
        // The tag's place comes to the front, so that the rest is one piece.
        block[..tag_at + TAG_BYTES].rotate_right(TAG_BYTES);
        let (place, rest) = block.split_at_mut(TAG_BYTES);
        let tag = if self.flaws.unproven == Some(what) {
            let mut tag = [0; TAG_BYTES];
            tag[..8].copy_from_slice(&onefold_core::checksum::fast(at.0, rest).to_le_bytes());
            self.first.data.blocks.open(block_counter(u64::MAX, at.0), rest)?;
            tag
        } else {
            self.store.seal(what.at(0, at.0), &[], rest)?
        };
        place.copy_from_slice(&tag);
        block[..tag_at + TAG_BYTES].rotate_left(TAG_BYTES);
        Ok(tag)
    }

    /// Opens a block of metadata; the tag stays where it is. False when it is not what was sealed
    /// for this address, and then it is of no use.
    pub(crate) fn open_block(
        &self,
        what: What,
        at: Pba,
        tag_at: usize,
        block: &mut [u8; 4096],
    ) -> bool {
        block[..tag_at + TAG_BYTES].rotate_right(TAG_BYTES);
        let Some((tag, rest)) = block.split_first_chunk_mut::<TAG_BYTES>() else { return false };
        let whole = if self.flaws.unproven == Some(what) {
            self.first.data.blocks.open(block_counter(u64::MAX, at.0), rest).is_ok()
        } else {
            self.store.open(what.at(0, at.0), &[], rest, tag)
        };
        block[..tag_at + TAG_BYTES].rotate_left(TAG_BYTES);
        whole
    }

    /// Seals what a superblock hides, for its place and sequence; gives the tag, which proves
    /// `beside` too.
    pub(crate) fn seal_superblock(
        &self,
        (place, sequence): (u32, u64),
        beside: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        self.store.seal(What::Superblock.at(u64::from(place), sequence), beside, bytes)
    }

    /// Opens what a superblock hides.
    pub(crate) fn open_superblock(
        &self,
        (place, sequence): (u32, u64),
        beside: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        self.store.open(What::Superblock.at(u64::from(place), sequence), beside, bytes, tag)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use onefold_core::Algorithm;
    use onefold_seal::Random;

    use super::*;
    use crate::format::Identity;

    struct Repeated;

    impl Random for Repeated {
        fn fill(&self, into: &mut [u8]) -> Result<()> {
            (0..).zip(into).for_each(|(n, byte): (u32, _)| *byte = (n * 7 + 3) as u8);
            Ok(())
        }
    }

    pub(crate) fn sealing() -> Sealing {
        Sealing::new(&Keys::create([3; 16], &Repeated).unwrap(), Flaws::default()).unwrap()
    }

    /// The identity of a sealed store.
    pub(crate) fn identity() -> Identity {
        Identity::sealed([3; 16], Arc::new(sealing()), Algorithm::Blake3)
    }

    fn text() -> Block {
        let mut block = Block([0; 4096]);
        (0..).zip(&mut block.0).for_each(|(n, byte): (u32, _)| *byte = (n % 251) as u8);
        block
    }

    #[test]
    fn rule_29_a_block_opens_as_what_it_is_at_its_address_only() {
        let sealing = sealing();
        let mut sealed = text();
        sealing.seal_block(What::Page, Pba(77), 48, &mut sealed.0).unwrap();
        let opens = |what, at, tag_at, bit: Option<usize>| {
            let mut copy = sealed.clone();
            bit.into_iter().for_each(|bit| copy.0[bit / 8] ^= 1 << (bit % 8));
            let whole = sealing.open_block(what, at, tag_at, &mut copy.0);
            whole && copy.0[..48] == text().0[..48] && copy.0[64..] == text().0[64..]
        };
        assert!(opens(What::Page, Pba(77), 48, None));
        assert!(!opens(What::ListPage, Pba(77), 48, None), "another kind");
        assert!(!opens(What::Carrier, Pba(77), 64, None), "another kind, with its tag elsewhere");
        assert!(!opens(What::Page, Pba(78), 48, None), "another address");
        for bit in (0..4096 * 8).step_by(97).chain(48 * 8..64 * 8) {
            assert!(!opens(What::Page, Pba(77), 48, Some(bit)), "bit {bit}");
        }
    }

    #[test]
    fn rule_29_what_a_carrier_carries_opens_with_its_prefix_and_address_only() {
        let sealing = sealing();
        let mut sealed = vec![0; 600];
        sealed[TAG_BYTES..].fill(b'x');
        sealing.seal_payload(FIRST_DOMAIN, 5, Pba(77), &mut sealed).unwrap();
        assert!(!sealed.windows(8).any(|part| part == [b'x'; 8]));
        let opens = |prefix, at, sealed: &[u8]| {
            let mut copy = sealed.to_vec();
            let found = sealing.open_payload(FIRST_DOMAIN, prefix, at, &mut copy);
            found.is_some_and(|found| found.iter().all(|&byte| byte == b'x'))
        };
        assert!(opens(5, Pba(77), &sealed));
        assert!(!opens(!5, Pba(77), &sealed));
        assert!(!opens(5, Pba(78), &sealed));
        assert!(!opens(5, Pba(77), &sealed[..599]));
        assert!(!opens(5, Pba(77), &sealed[..8]));
    }

    /// The same bytes as a raw block and as a payload, at one address: no key stream is used twice,
    /// and the store key alone opens neither.
    #[test]
    fn rule_29_what_was_compressed_never_has_the_key_stream_of_raw_blocks() {
        let sealing = sealing();
        let mut raw = text();
        sealing.seal_raw(FIRST_DOMAIN, 9, Pba(5), &mut raw).unwrap();
        let mut payload = [&[0; TAG_BYTES][..], &text().0[..2000]].concat();
        sealing.seal_payload(FIRST_DOMAIN, 9, Pba(5), &mut payload).unwrap();
        let as_payload = &payload[TAG_BYTES..];
        assert!(raw.0[..2000].chunks(16).zip(as_payload.chunks(16)).all(|(one, two)| one != two));
        let place = What::Payload.at(0, 5);
        let (tag, bytes) = payload.split_first_chunk_mut::<TAG_BYTES>().unwrap();
        assert!(!sealing.store.open(place, &9_u64.to_le_bytes(), bytes, tag));
    }

    #[test]
    fn rule_29_a_raw_block_looks_different_at_each_address_and_with_each_prefix() {
        let sealing = sealing();
        let sealed = |prefix, at| {
            let mut block = text();
            sealing.seal_raw(FIRST_DOMAIN, prefix, Pba(at), &mut block).unwrap();
            block
        };
        let all = [sealed(1, 1), sealed(2, 1), sealed(1, 2), sealed(!1, 1)];
        let mut parts = std::collections::BTreeSet::new();
        for part in all.iter().flat_map(|block| block.0.chunks(16)) {
            assert!(parts.insert(part), "16 bytes twice");
        }
        let mut opened = sealed(1, 1);
        sealing.open_raw(FIRST_DOMAIN, 1, Pba(1), &mut opened).unwrap();
        assert!(opened.0 == text().0);
    }

    #[test]
    fn rule_25_what_one_domain_sealed_opens_in_no_other_one() {
        let mut keys = Keys::create([3; 16], &Repeated).unwrap();
        let domains: Vec<u32> =
            ["one", "two"].map(|name| keys.add_domain(name, &Repeated).unwrap()).to_vec();
        let both = Sealing::new(&keys, Flaws::default()).unwrap();
        let mut fingerprints: Vec<_> = both.fingerprints().map(|(_, key)| *key.expose()).collect();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        assert_eq!(fingerprints.len(), 3);
        let mut payload = [&[0; TAG_BYTES][..], &text().0[..900]].concat();
        both.seal_payload(domains[0], 9, Pba(5), &mut payload).unwrap();
        let mut raw = text();
        both.seal_raw(domains[0], 9, Pba(5), &mut raw).unwrap();
        for domain in [FIRST_DOMAIN, domains[1]] {
            let mut other = text();
            both.seal_raw(domain, 9, Pba(5), &mut other).unwrap();
            assert!(raw.0.chunks(16).zip(other.0.chunks(16)).all(|(one, two)| one != two));
            assert!(both.open_payload(domain, 9, Pba(5), &mut payload.clone()).is_none());
        }
        assert!(both.open_payload(domains[0], 9, Pba(5), &mut payload.clone()).is_some());
        keys.erase_domain(domains[0], &Repeated).unwrap();
        let left = Sealing::new(&keys, Flaws::default()).unwrap();
        assert!(left.open_payload(domains[0], 9, Pba(5), &mut payload).is_none());
        let error = left.open_raw(domains[0], 9, Pba(5), &mut raw).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("erased"), "{error}");
        assert_eq!(left.next_domain(), 3);
    }
}
