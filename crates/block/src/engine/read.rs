//! Reading: one look at the map in memory, one device read for neighbours, and every block verified
//! by its fingerprint.

use onefold_core::{
    Block, BlockRead, Error, Extent, ExtentKind, Fingerprint, Kind, Lba, Pba, Read, Result,
    VolumeId,
};

use crate::{
    counters::add,
    engine::resolve::{map_entries, map_entry},
    format::{
        FIRST_DOMAIN,
        carrier::Carrier,
        pack::Pack,
        page::{Form, MapEntry},
        stored::{Stored, by_older},
    },
    kernel::{Kernel, Where},
    rules::Rule,
    window::Found,
};

/// A block that must come from the disk.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) pba: Pba,
    pub(crate) form: Form,
    pub(crate) prefix: u64,
}

/// The source of one block of a read.
#[derive(Clone, Copy)]
enum Step {
    Done,
    Tables,
    Lost,
    Disk(Wanted),
}

/// How much of a read came from the disk, apart from packs: no copy brings fragments nearer to each other.
#[derive(Clone, Copy, Default)]
pub(crate) struct FromDisk {
    pub(crate) blocks: usize,
    /// Pieces of the disk in which they lay.
    pub(crate) runs: usize,
}

/// Reads block ranges of a volume; the device reads of the whole batch are issued together.
/// Every block that comes from the disk is compared with its fingerprint.
pub(crate) fn read(kernel: &Kernel, volume: VolumeId, reads: &mut [BlockRead<'_>]) -> FromDisk {
    let mut steps: Vec<Vec<Step>> = Vec::with_capacity(reads.len());
    // The tables are held until the blocks are read: none of them is reused before.
    let (tables, domain) = {
        let state = kernel.state.lock();
        let found = state.volumes.alive(volume);
        let domain = found.as_ref().map_or(FIRST_DOMAIN, |volume| volume.domain);
        let blocks = found.map(|volume| volume.blocks);
        for read in reads.iter_mut() {
            let count = read.into.len() as u64;
            read.result = match &blocks {
                Err(gone) => Err(gone.clone()),
                Ok(blocks) if read.first.0.checked_add(count).is_some_and(|end| end <= *blocks) => {
                    Ok(())
                }
                Ok(_) => Err(Error::new(
                    Kind::InvalidInput,
                    format!("block {} is beyond the end of the volume", read.first),
                )),
            };
            if read.result.is_err() {
                steps.push(Vec::new());
                continue;
            }
            let first = read.first;
            steps.push(
                read.into
                    .iter_mut()
                    .enumerate()
                    .map(|(n, block)| {
                        let lba = first.plus(n as u64);
                        if let Some(Found::Block(found)) = state.windows.open().find(volume, lba) {
                            block.0 = found.0;
                            return Step::Done;
                        }
                        match state.locate(volume, lba) {
                            Where::Window(window) => {
                                match window.find(volume, lba) {
                                    Some(Found::Block(found)) => block.0 = found.0,
                                    _ => block.0.fill(0),
                                }
                                Step::Done
                            }
                            Where::Zero { .. } => {
                                block.0.fill(0);
                                Step::Done
                            }
                            Where::Overlay(entry) => from_entry(entry, block),
                            Where::Tables => Step::Tables,
                        }
                    })
                    .collect(),
            );
            add(&kernel.counters.read_blocks, count);
        }
        (state.overlays.tables().clone(), domain)
    };
    let asked: Vec<Lba> = reads
        .iter()
        .zip(&steps)
        .flat_map(|(read, steps)| {
            let first = read.first;
            steps
                .iter()
                .enumerate()
                .filter(|(_, step)| matches!(step, Step::Tables))
                .map(move |(n, _)| first.plus(n as u64))
        })
        .collect();
    if !asked.is_empty() {
        match map_entries(kernel, &tables, volume, &asked) {
            Ok(entries) => {
                let mut entries = entries.into_iter();
                for (read, steps) in reads.iter_mut().zip(&mut steps) {
                    for (block, step) in read
                        .into
                        .iter_mut()
                        .zip(steps)
                        .filter(|(_, step)| matches!(step, Step::Tables))
                    {
                        *step = entries.next().map_or(Step::Done, |entry| from_entry(entry, block));
                    }
                }
            }
            // A damaged page costs only the reads that need it.
            Err(_) if kernel.keeps(Rule::DamageFailsItsReadsAlone) => {
                for (read, steps) in reads.iter_mut().zip(&mut steps) {
                    for (n, step) in steps
                        .iter_mut()
                        .enumerate()
                        .filter(|(_, step)| matches!(step, Step::Tables))
                    {
                        let lba = read.first.plus(n as u64);
                        *step = match map_entry(kernel, &tables, volume, lba) {
                            Ok(entry) => from_entry(entry, &mut read.into[n]),
                            Err(e) => {
                                read.result = Err(e.context(format!("block {lba}")));
                                Step::Done
                            }
                        };
                    }
                }
            }
            Err(e) => reads.iter_mut().for_each(|read| read.result = Err(e.clone())),
        }
    }
    for (read, steps) in reads.iter_mut().zip(&steps) {
        if let Some(n) = steps.iter().position(|step| matches!(step, Step::Lost))
            && kernel.keeps(Rule::LostIsAnError)
        {
            read.result = Err(lost(volume, read.first.plus(n as u64)));
        }
    }
    let from_disk = read_wanted(kernel, (volume, domain), reads, &steps);
    drop(tables);
    from_disk
}

/// Issues the device reads of a batch, then expands and verifies. Each pack is read once for all its fragments.
fn read_wanted(
    kernel: &Kernel,
    (volume, domain): (VolumeId, u32),
    reads: &mut [BlockRead<'_>],
    steps: &[Vec<Step>],
) -> FromDisk {
    // One device read for blocks that are neighbours both on the disk and in the answer.
    let mut runs: Vec<(usize, usize, usize, Pba)> = Vec::new();
    let mut packs = Packs::default();
    for (r, steps) in steps.iter().enumerate() {
        for (n, step) in steps.iter().enumerate() {
            let Step::Disk(wanted) = step else { continue };
            if wanted.form.is_packed() {
                packs.want(wanted.pba);
                continue;
            }
            match runs.last_mut() {
                Some((read, at, count, pba))
                    if *read == r && *at + *count == n && pba.plus(*count as u64) == wanted.pba =>
                {
                    *count += 1
                }
                _ => runs.push((r, n, 1, wanted.pba)),
            }
        }
    }
    if runs.is_empty() && packs.places.is_empty() {
        return FromDisk::default();
    }
    let runs_of_packs = packs.make_room();
    let blocks = kernel.disk.blocks();
    let mut results: Vec<Result<()>> = {
        let mut device: Vec<Read<'_>> = Vec::with_capacity(runs.len() + runs_of_packs.len());
        let mut pending = runs.iter().peekable();
        for (r, read) in reads.iter_mut().enumerate() {
            let mut rest: &mut [Block] = read.into;
            let mut offset = 0;
            while let Some(&(_, at, count, pba)) = pending.next_if(|run| run.0 == r) {
                let (_, after) = rest.split_at_mut(at - offset);
                let (target, after) = after.split_at_mut(count);
                rest = after;
                offset = at + count;
                device.push(Read::new(pba, target));
            }
        }
        let mut rest: &mut [Block] = &mut packs.blocks;
        for &(_, count, pba) in &runs_of_packs {
            let (target, after) = rest.split_at_mut(count);
            rest = after;
            device.push(Read::new(pba, target));
        }
        let beyond = |read: &Read<'_>| read.at.0 + read.into.len() as u64 > blocks;
        if device.iter().any(beyond) {
            // Reads that lie within it are made one by one: they have nothing to do with the
            // others.
            for read in &mut device {
                if beyond(read) {
                    read.result = Err(Error::new(
                        Kind::Corrupt,
                        format!("block {} lies beyond the disk", read.at),
                    ));
                } else {
                    kernel.disk.read(std::slice::from_mut(read));
                }
            }
        } else {
            kernel.disk.read(&mut device);
        }
        device.into_iter().map(|read| read.result).collect()
    };
    for (&(first, count, _), result) in runs_of_packs.iter().zip(results.split_off(runs.len())) {
        if let Err(e) = result {
            if !kernel.keeps(Rule::FailedReadFailsAlone) {
                kernel.stop(&e);
            }
            packs.read_each(kernel, first..first + count, &e);
        }
    }
    for (&(r, at, count, pba), result) in runs.iter().zip(results) {
        if let Err(e) = result
            && reads[r].result.is_ok()
        {
            if !kernel.keeps(Rule::FailedReadFailsAlone) {
                kernel.stop(&e);
            }
            let (bad, e) = first_unreadable(kernel, pba, count, e);
            let lba = reads[r].first.plus((at + bad) as u64);
            reads[r].result = Err(e.context(format!("volume {volume}, block {lba}")));
        }
    }
    for (read, steps) in reads.iter_mut().zip(steps) {
        if read.result.is_ok() {
            let of = (volume, domain);
            read.result = verify(kernel, of, read.first, read.into, (steps, &packs));
        }
    }
    FromDisk { blocks: runs.iter().map(|run| run.2).sum(), runs: runs.len() }
}

/// The packs that a batch of reads needs. Nothing is allocated without one.
#[derive(Default)]
struct Packs {
    /// Sorted once all are known.
    places: Vec<Pba>,
    /// What lies there.
    blocks: Vec<Block>,
    /// Those that can't be read.
    failed: Vec<(Pba, Error)>,
}

impl Packs {
    /// Neighbours that lie in one pack come one after the other.
    fn want(&mut self, pack: Pba) {
        if self.places.last() != Some(&pack) {
            self.places.push(pack);
        }
    }

    /// Makes room for all of them. Gives the runs in which they lie: the number of the first, how many, and where.
    fn make_room(&mut self) -> Vec<(usize, usize, Pba)> {
        self.places.sort_unstable();
        self.places.dedup();
        if !self.places.is_empty() {
            self.blocks = Block::zeroed_vec(self.places.len());
        }
        let mut runs: Vec<(usize, usize, Pba)> = Vec::new();
        for (n, &pack) in self.places.iter().enumerate() {
            match runs.last_mut() {
                Some((_, count, first)) if first.plus(*count as u64) == pack => *count += 1,
                _ => runs.push((n, 1, pack)),
            }
        }
        runs
    }

    /// Of a run that could not be read those are read that can be.
    fn read_each(&mut self, kernel: &Kernel, run: std::ops::Range<usize>, error: &Error) {
        for n in run {
            let (at, into) = (self.places[n], std::slice::from_mut(&mut self.blocks[n]));
            let mut read = [Read::new(at, into)];
            if at.0 < kernel.disk.blocks() {
                kernel.disk.read(&mut read);
            } else {
                read[0].result = Err(error.clone());
            }
            let [read] = read;
            if let Err(e) = read.result {
                self.failed.push((at, e));
            }
        }
    }

    /// The pack at a place, as it was read.
    fn at(&self, pack: Pba) -> Result<Option<&Block>> {
        if let Some((_, e)) = self.failed.iter().find(|(at, _)| *at == pack) {
            return Err(e.clone());
        }
        Ok(self.places.binary_search(&pack).ok().map(|n| &self.blocks[n]))
    }
}

/// The pack of a block of a read: its own, not that of the block before it.
fn pack_of(kernel: &Kernel, steps: &[Step], n: usize, own: Pba) -> Pba {
    let before = n.checked_sub(1).and_then(|before| steps.get(before));
    match before {
        Some(Step::Disk(Wanted { pba, form: Form::Packed(_), .. }))
            if !kernel.keeps(Rule::PackReadForItsOwn) =>
        {
            *pba
        }
        _ => own,
    }
}

/// Which block of a failed read of neighbours can't be read.
fn first_unreadable(kernel: &Kernel, pba: Pba, count: usize, error: Error) -> (usize, Error) {
    let mut single = Block::zeroed_vec(1);
    for n in 0..count {
        let mut read = [Read::new(pba.plus(n as u64), &mut single)];
        if read[0].at.0 < kernel.disk.blocks() {
            kernel.disk.read(&mut read);
        }
        let [read] = read;
        if let Err(e) = read.result {
            return (n, e);
        }
    }
    (0, error)
}

/// Expands carried blocks in place and compares every block that came from the disk with its
/// fingerprint.
fn verify(
    kernel: &Kernel,
    (volume, domain): (VolumeId, u32),
    first: Lba,
    into: &mut [Block],
    (steps, packs): (&[Step], &Packs),
) -> Result<()> {
    let bad = |n: usize, pba: Pba, why: &str| {
        let lba = first.plus(n as u64);
        Error::new(
            Kind::Corrupt,
            format!("volume {volume}, block {lba}: the data at physical block {pba} {why}"),
        )
    };
    for (n, (block, step)) in into.iter_mut().zip(steps).enumerate() {
        if let Step::Disk(Wanted { pba, form: Form::Packed(fragment), .. }) = *step {
            let at = pack_of(kernel, steps, n, pba);
            let unread = |e: Error| {
                let lba = first.plus(n as u64);
                e.context(format!("volume {volume}, block {lba}"))
            };
            let found = packs
                .at(at)
                .map_err(unread)?
                .and_then(|pack| Pack::shape(&kernel.identity, pack, at))
                .ok_or_else(|| bad(n, pba, "is not the pack that it should be"))?;
            found
                .expand(fragment, block)
                .map_err(|e| bad(n, pba, "can't be expanded").caused_by(e))?;
        }
        if let Step::Disk(Wanted { pba, form: Form::Raw, prefix }) = *step {
            kernel.identity.open_raw(domain, prefix, pba, block)?;
        }
        if let Step::Disk(Wanted { pba, form: Form::Carried, prefix }) = *step {
            let raw = block.clone();
            let carrier = Carrier::shape(&kernel.identity, &raw, pba)
                .filter(|carrier| carrier.header.address == pba);
            let carrier =
                carrier.ok_or_else(|| bad(n, pba, "is not the carrier that it should be"))?;
            carrier
                .expand(domain, prefix, block)
                .map_err(|e| bad(n, pba, "can't be expanded").caused_by(e))?;
        }
    }
    let from_disk: Vec<(usize, Wanted)> = steps
        .iter()
        .enumerate()
        .filter_map(
            |(n, step)| if let Step::Disk(wanted) = *step { Some((n, wanted)) } else { None },
        )
        .collect();
    let blocks: Vec<&Block> = from_disk.iter().map(|&(n, _)| &into[n]).collect();
    let fingerprints = kernel.identity.fingerprinter_of(domain)?.many(&blocks);
    for (&(n, wanted), fingerprint) in from_disk.iter().zip(fingerprints) {
        if fingerprint.has_prefix(wanted.prefix) {
            continue;
        }
        let Wanted { pba, form, prefix } = wanted;
        let stored = Stored { pba, form, prefix };
        let is_it = |found: &Fingerprint| found.has_prefix(prefix);
        let older = by_older(&kernel.identity, domain, stored, &mut into[n], is_it)?;
        if kernel.keeps(Rule::ReadsVerified) && older.is_none() {
            return Err(bad(n, pba, "does not match its fingerprint"));
        }
    }
    Ok(())
}

/// Reads and verifies one block of a volume and its domain.
pub(crate) fn read_block(
    kernel: &Kernel,
    of: (VolumeId, u32),
    lba: Lba,
    wanted: Wanted,
    into: &mut Block,
) -> Result<()> {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: lba, into: &mut blocks, result: Ok(()) }];
    read_wanted(kernel, of, &mut reads, &[vec![Step::Disk(wanted)]]);
    let [read] = reads;
    read.result?;
    into.0 = blocks[0].0;
    Ok(())
}

/// Reads stored blocks of a domain, all together, each for itself: `None` where there is none, or where it can't be
/// read. The caller holds the tables that name them, and compares what they hold.
pub(crate) fn read_stored(
    kernel: &Kernel,
    domain: u32,
    stored: &[Option<Wanted>],
) -> Vec<Option<Block>> {
    let mut blocks = Block::zeroed_vec(stored.len());
    let mut steps: Vec<Vec<Step>> = Vec::new();
    {
        let state = kernel.state.lock();
        for (block, wanted) in blocks.iter_mut().zip(stored) {
            let Some(wanted) = *wanted else {
                steps.push(vec![Step::Lost]);
                continue;
            };
            // One that is on its way to the disk.
            let on_its_way = state.windows.content_of(wanted.pba);
            steps.push(vec![match on_its_way.filter(|(_, of)| *of == Some(domain)) {
                Some((found, _)) => {
                    block.0 = found.0;
                    Step::Done
                }
                None => Step::Disk(wanted),
            }]);
        }
    }
    let mut reads: Vec<BlockRead<'_>> = blocks
        .iter_mut()
        .map(|block| BlockRead { first: Lba(0), into: std::slice::from_mut(block), result: Ok(()) })
        .collect();
    read_wanted(kernel, (VolumeId(0), domain), &mut reads, &steps);
    let whole: Vec<bool> = reads
        .iter()
        .zip(&steps)
        .map(|(read, steps)| read.result.is_ok() && !matches!(steps[..], [Step::Lost]))
        .collect();
    blocks.into_iter().zip(whole).map(|(block, whole)| whole.then_some(block)).collect()
}

/// The extents of a range of blocks: at most `limit` of them in bytes, neighbours differing in
/// kind; it may cover less than asked.
pub(crate) fn extents(
    kernel: &Kernel,
    volume: VolumeId,
    first: Lba,
    blocks: u64,
    limit: usize,
) -> Result<Vec<Extent>> {
    // Looked at in parts, so that a huge range costs bounded memory.
    const PART: u64 = 4096;
    let end = first.0.checked_add(blocks);
    let size = kernel.state.lock().volumes.get(volume)?.blocks;
    let Some(end) = end.filter(|&end| end <= size) else {
        return Err(Error::new(Kind::InvalidInput, "the range is beyond the end of the volume"));
    };
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = first.0;
    let mut parts = 0;
    while at < end && parts < 64 {
        let skip = hole_at(kernel, volume, at, end)?;
        let (count, kinds) = if skip > at {
            (skip - at, vec![])
        } else {
            let count = PART.min(end - at);
            (count, kinds(kernel, volume, at, count)?)
        };
        let mut push = |kind, blocks: u64| match extents.last_mut() {
            Some(last) if last.kind == kind => last.bytes += blocks * 4096,
            _ => extents.push(Extent { bytes: blocks * 4096, kind }),
        };
        if kinds.is_empty() {
            push(ExtentKind::Hole, count);
        }
        kinds.into_iter().for_each(|kind| push(kind, 1));
        if extents.len() > limit {
            extents.truncate(limit);
            return Ok(extents);
        }
        at += count;
        parts += 1;
    }
    Ok(extents)
}

/// The end of the hole that begins at `at`, as far as the shape of the map alone tells; `at`
/// when that tells nothing.
fn hole_at(kernel: &Kernel, volume: VolumeId, at: u64, end: u64) -> Result<u64> {
    use crate::format::page::Table;
    let (tables, quiet) = {
        let state = kernel.state.lock();
        let quiet = state.windows.is_empty() && state.overlays.is_empty();
        (state.overlays.tables().clone(), quiet && state.overlays.tables().discards.is_empty())
    };
    let Some(map) = tables.volumes.get(&volume).filter(|_| quiet) else {
        return Ok(at);
    };
    let per_leaf = Table::Map.per_leaf();
    let next = kernel.pages.next_leaf(Table::Map, map.family(), &map.map, at / per_leaf)?;
    Ok(next.map_or(end, |leaf| (leaf * per_leaf).clamp(at, end)))
}

/// The kind of each of some blocks.
fn kinds(kernel: &Kernel, volume: VolumeId, first: u64, count: u64) -> Result<Vec<ExtentKind>> {
    let mut kinds = vec![None; count as usize];
    let zero = |keep| Some(if keep { ExtentKind::Zero } else { ExtentKind::Hole });
    let of = |entry: MapEntry| match entry {
        MapEntry::Hole => Some(ExtentKind::Hole),
        MapEntry::Zero => Some(ExtentKind::Zero),
        MapEntry::Block { .. } | MapEntry::Lost => Some(ExtentKind::Data),
    };
    let tables = {
        let state = kernel.state.lock();
        for (n, kind) in kinds.iter_mut().enumerate() {
            let lba = Lba(first + n as u64);
            let found = |found: Found<'_>| match found {
                Found::Block(_) => Some(ExtentKind::Data),
                Found::Zero { keep } => zero(keep),
            };
            *kind = match state.windows.open().find(volume, lba) {
                Some(open) => found(open),
                None => match state.locate(volume, lba) {
                    Where::Window(window) => window.find(volume, lba).and_then(found),
                    Where::Zero { keep } => zero(keep),
                    Where::Overlay(entry) => of(entry),
                    Where::Tables => None,
                },
            };
        }
        state.overlays.tables().clone()
    };
    let asked: Vec<Lba> =
        (first..).zip(&kinds).filter(|(_, kind)| kind.is_none()).map(|(lba, _)| Lba(lba)).collect();
    let mut entries = map_entries(kernel, &tables, volume, &asked)?.into_iter();
    Ok(kinds
        .into_iter()
        .map(|kind| kind.or_else(|| entries.next().and_then(of)).unwrap_or(ExtentKind::Hole))
        .collect())
}

/// Fills a block that needs no disk, or says where it is.
fn from_entry(entry: MapEntry, block: &mut Block) -> Step {
    match entry {
        MapEntry::Hole | MapEntry::Zero => {
            block.0.fill(0);
            Step::Done
        }
        MapEntry::Lost => Step::Lost,
        MapEntry::Block { pba, form, prefix } => Step::Disk(Wanted { pba, form, prefix }),
    }
}

/// True when an address is known to be lost.
pub(crate) fn is_lost(kernel: &Kernel, volume: VolumeId, lba: Lba) -> bool {
    let (place, tables) = {
        let state = kernel.state.lock();
        let open = state.windows.open().holds(volume, lba);
        let place = if open { None } else { Some(state.locate(volume, lba)) };
        (place, state.overlays.tables().clone())
    };
    match place {
        Some(Where::Overlay(entry)) => entry == MapEntry::Lost,
        Some(Where::Tables) => {
            map_entry(kernel, &tables, volume, lba).is_ok_and(|entry| entry == MapEntry::Lost)
        }
        _ => false,
    }
}

/// The error of an address whose data is lost: a repair found so, or the store from which it was sent
/// could not read it.
pub(super) fn lost(volume: VolumeId, lba: Lba) -> Error {
    let message = format!(
        "volume {volume}, block {lba}: the data is lost, as an earlier repair found, or the sender of \
         a snapshot that skipped damage; writing the block makes it usable again"
    );
    Error::new(Kind::Corrupt, message)
}
