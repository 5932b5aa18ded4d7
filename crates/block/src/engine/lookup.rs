//! Looking up content: whether a domain has a block stored already.
//!
//! *Invariant:* what is found has the whole fingerprint that it is looked for by, which the key of a
//! domain made. So nobody finds what another domain has.

use onefold_core::{Block, Error, Fingerprint, Kind, Pba, Read, Result};

use crate::{
    format::{
        carrier::Carrier,
        pack::Pack,
        page::{self, ReferenceEntry, Table},
    },
    index::{hash_of, paged},
    kernel::Kernel,
    overlay::Tables,
    rules::Rule,
    window::Placed,
};

/// What is looked for among the stored blocks.
#[derive(Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// The domain of whoever looks, by whose key the fingerprint is made.
    pub(crate) domain: u32,
    pub(crate) fingerprint: &'a Fingerprint,
    /// Its bytes. A store that compares them has to have them.
    pub(crate) block: Option<&'a Block>,
}

/// For each that is sought: the block of its domain that it is, if one is stored. Table pages of the
/// whole window are read together.
pub(crate) fn look_up(
    kernel: &Kernel,
    tables: &Tables,
    wanted: &[Option<Sought<'_>>],
) -> Result<Vec<Option<Placed>>> {
    let candidates =
        candidates(kernel, tables, wanted.iter().map(|sought| Some(sought.as_ref()?.fingerprint)));
    let mut stored = vec![None; wanted.len()];
    if candidates.is_empty() {
        return Ok(stored);
    }
    // Blocks placed since the last checkpoint are known in memory; the others are in the
    // tables.
    let mut entries: Vec<Option<(Fingerprint, bool)>> = {
        let state = kernel.state.lock();
        candidates.iter().map(|&(_, pba)| state.allocator.fresh(pba)).collect()
    };
    // A page that can't be read costs duplicates, not the write.
    let older = || {
        candidates
            .iter()
            .zip(&entries)
            .filter(|(_, entry)| entry.is_none())
            .map(|(&(_, pba), _)| pba.0)
    };
    let references =
        kernel.pages.holding_if_whole(Table::References, 0, &tables.state.references, older());
    let fingerprints =
        kernel.pages.holding_if_whole(Table::Fingerprints, 0, &tables.state.fingerprints, older());
    for (&(_, pba), entry) in
        candidates.iter().zip(&mut entries).filter(|(_, entry)| entry.is_none())
    {
        if let (Some(((_, counts), at)), Some(((_, page), slot))) =
            (references.get(pba.0), fingerprints.get(pba.0))
        {
            let found = ReferenceEntry::get(counts, at);
            if kernel.keeps(Rule::DuplicatesHaveReferences) && found.references == 0 {
                continue;
            }
            *entry = Some((page::fingerprint(page, slot), found.carried));
        }
    }
    for (&(n, pba), entry) in candidates.iter().zip(entries) {
        let (Some((fingerprint, carried)), None, Some(sought)) = (entry, stored[n], wanted[n])
        else {
            continue;
        };
        if fingerprint == *sought.fingerprint
            && (!kernel.fixed.compares_bytes()
                || has_bytes(kernel, Placed { pba, carried }, sought)?)
        {
            stored[n] = Some(Placed { pba, carried });
        }
    }
    Ok(stored)
}

/// The blocks that may hold what has these fingerprints, each with the number of who looks for it.
fn candidates<'a>(
    kernel: &Kernel,
    tables: &Tables,
    wanted: impl Iterator<Item = Option<&'a Fingerprint>>,
) -> Vec<(usize, Pba)> {
    let mut candidates: Vec<(usize, Pba)> = Vec::new();
    let mut on_disk: Vec<(usize, u64)> = Vec::new();
    {
        let index = kernel.index.lock();
        let mut found = Vec::new();
        for (n, fingerprint) in wanted.enumerate().filter_map(|(n, wanted)| Some((n, wanted?))) {
            let hash = hash_of(fingerprint.prefix());
            if index.candidates(hash, &mut found) {
                on_disk.push((n, hash));
            }
            candidates.extend(found.drain(..).map(|pba| (n, pba)));
        }
    }
    candidates_on_disk(kernel, tables, &on_disk, &mut candidates);
    candidates
}

/// A fragment of a pack, and what it holds.
pub(crate) struct Fragment {
    pub(crate) pack: Pba,
    pub(crate) number: u8,
    pub(crate) content: Box<Block>,
}

/// For each fingerprint: the fragments that have it, of packs that some map names as of the tables. Packs that may
/// have one are read, and proved by their checksums; a fragment may be one that no map names any more. The
/// caller compares what they hold.
///
/// # Errors
/// A page of references can't be read. A pack that can't be read has no fragments.
pub(crate) fn fragments(
    kernel: &Kernel,
    tables: &Tables,
    wanted: &[Option<Fingerprint>],
) -> Result<Vec<Vec<Fragment>>> {
    let mut found: Vec<Vec<Fragment>> = wanted.iter().map(|_| Vec::new()).collect();
    if tables.state.packs == 0 {
        return Ok(found);
    }
    let mut candidates = candidates(kernel, tables, wanted.iter().map(Option::as_ref));
    {
        let state = kernel.state.lock();
        candidates.retain(|&(_, pba)| state.allocator.fresh(pba).is_none());
    }
    let all = candidates.iter().map(|&(_, pba)| pba.0);
    let references = kernel.pages.holding(Table::References, 0, &tables.state.references, all)?;
    candidates.retain(|&(_, pba)| {
        let entry = references.get(pba.0).map(|((_, page), slot)| ReferenceEntry::get(page, slot));
        pba.0 < kernel.disk.blocks() && entry.is_some_and(|one| one.carried && one.references > 0)
    });
    let mut places: Vec<Pba> = candidates.iter().map(|&(_, pba)| pba).collect();
    places.sort_unstable();
    places.dedup();
    if places.is_empty() {
        return Ok(found);
    }
    let blocks = read_packs(kernel, &places);
    let proven = |(&at, block)| Pack::proven(&kernel.identity, Option::<Block>::as_ref(block)?, at);
    let packs: Vec<Option<Pack<'_>>> = places.iter().zip(&blocks).map(proven).collect();
    for (n, pba) in candidates {
        let pack = places.binary_search(&pba).ok().and_then(|at| packs[at].as_ref());
        let (Some(pack), Some(fingerprint)) = (pack, &wanted[n]) else { continue };
        let number = match kernel.keeps(Rule::FragmentHasFingerprint) {
            true => pack.number_of(fingerprint),
            false => Some(0),
        };
        let mut content = Block::zeroed();
        if let Some(number) = number
            && pack.expand(number, &mut content).is_ok()
        {
            found[n].push(Fragment { pack: pba, number, content });
        }
    }
    Ok(found)
}

/// Reads packs, all together; `None` where that can't be done. Nobody has compared their checksums.
pub(crate) fn read_packs(kernel: &Kernel, places: &[Pba]) -> Vec<Option<Block>> {
    let mut blocks = Block::zeroed_vec(places.len());
    let is_within = |at: Pba| at.0 < kernel.disk.blocks();
    let mut reads: Vec<Read<'_>> = places
        .iter()
        .zip(&mut blocks)
        .filter(|(at, _)| is_within(**at))
        .map(|(&at, block)| Read::new(at, std::slice::from_mut(block)))
        .collect();
    if !reads.is_empty() {
        kernel.disk.read(&mut reads);
    }
    let mut whole = reads.into_iter().map(|read| read.result.is_ok());
    let whole: Vec<bool> =
        places.iter().map(|&at| is_within(at) && whole.next() == Some(true)).collect();
    blocks.into_iter().zip(whole).map(|(block, whole)| whole.then_some(block)).collect()
}

/// Adds what the index on disk knows; its pages are read together. One that can't be read knows
/// nothing.
fn candidates_on_disk(
    kernel: &Kernel,
    tables: &Tables,
    hashes: &[(usize, u64)],
    candidates: &mut Vec<(usize, Pba)>,
) {
    let bits = tables.state.index_bits;
    let numbers = hashes.iter().map(|&(_, hash)| paged::page_of(hash, bits));
    let pages = kernel.pages.holding_if_whole(Table::Index, 0, &tables.state.index, numbers);
    for &(n, hash) in hashes {
        if let Some(((_, page), _)) = pages.get(paged::page_of(hash, bits)) {
            candidates.extend(
                paged::entries(page).filter(|entry| entry.hash == hash).map(|entry| (n, entry.pba)),
            );
        }
    }
}

/// The stored block of a domain that has this content.
pub(crate) fn stored(kernel: &Kernel, domain: u32, block: &Block) -> Result<Option<Placed>> {
    let tables = kernel.tables();
    let fingerprint = &kernel.identity.fingerprinter_of(domain)?.one(block);
    let sought = Sought { domain, fingerprint, block: Some(block) };
    Ok(look_up(kernel, &tables, &[Some(sought)])?.pop().flatten())
}

/// For each fingerprint of a domain: the block that has it, if one is stored. Its bytes are not looked
/// at.
pub(crate) fn find(
    kernel: &Kernel,
    tables: &Tables,
    domain: u32,
    wanted: &[Fingerprint],
) -> Result<Vec<Option<Placed>>> {
    if kernel.fixed.compares_bytes() {
        return Err(Error::new(Kind::Unsupported, "a fingerprint names no content here"));
    }
    let sought = |fingerprint| Some(Sought { domain, fingerprint, block: None });
    let wanted: Vec<_> = wanted.iter().map(sought).collect();
    look_up(kernel, tables, &wanted)
}

/// True when a stored block is of the domain and has exactly these bytes. One that can't be read or
/// expanded has not.
fn has_bytes(
    kernel: &Kernel,
    Placed { pba, carried }: Placed,
    Sought { domain, fingerprint, block }: Sought<'_>,
) -> Result<bool> {
    let Some(block) = block else { return Ok(false) };
    let in_flight = {
        let state = kernel.state.lock();
        state.windows.content_of(pba).map(|(found, of)| (Box::new(found.clone()), of))
    };
    let raw = match in_flight {
        // A raw block is in memory as the client wrote it.
        Some((_, Some(of))) if of != domain => return Ok(false),
        Some((raw, _)) => raw,
        None => {
            let mut buffer = Block::zeroed_vec(1);
            let mut read = [Read::new(pba, &mut buffer)];
            kernel.disk.read(&mut read);
            let [read] = read;
            if read.result.is_err() {
                return Ok(false);
            }
            let mut raw = Box::new(buffer.swap_remove(0));
            if !carried {
                kernel.identity.open_raw(domain, fingerprint.prefix(), pba, &mut raw)?;
            }
            raw
        }
    };
    if !carried {
        return Ok(raw.0 == block.0);
    }
    let mut expanded = Block::zeroed();
    let whole = Carrier::shape(&kernel.identity, &raw, pba)
        .is_some_and(|carrier| carrier.expand(domain, fingerprint.prefix(), &mut expanded).is_ok());
    Ok(whole && expanded.0 == block.0)
}
