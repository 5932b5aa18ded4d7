//! Gathering: client changes join the open window.

use onefold_core::{BLOCK_BYTES, Block, Error, Kind, Lba, Result, Ticket, VolumeId, block};

use parking_lot::MutexGuard;

use super::admission::{Admission, Purpose, full, wait};
use crate::{
    counters::add,
    engine::{
        admission::{admit, admit_client_range, client_ranges_left, wait_for_ranges},
        lookup::stored,
        quota::{self, Answers, Verdict},
        read::{Wanted, read_block},
        resolve::map_entry,
        tenants::{admit_data, takes_duplicates},
    },
    format::{page::MapEntry, record::PER_WINDOW_MAX},
    kernel::{Kernel, State, Where},
    rules::Rule,
    scheme::verbs::Scheme,
    window::{Found, Placed},
};

/// Blocks that are admitted and copied while the lock is held once.
const PIECE: usize = 32;

const _: () = assert!(PIECE <= 64, "a quota has a bit for each");

/// Longest range that keeps zeroes instead of a hole: longer ones would fill the map with entries
/// that say nothing.
const KEEP_BLOCKS_MAX: u64 = 8192;

/// Writes bytes of any alignment. Acknowledge it when it returns (weak persistence), or when
/// its ticket is durable.
pub(crate) fn write(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    offset: u64,
    data: &[u8],
) -> Result<Ticket> {
    write_from(kernel, scheme, volume, offset, data, &mut 0)
}

/// As `write`, for callers that ask again when it is `Busy`: `taken` counts the
/// bytes that were taken already, from 0 on. A call that began anew each time could fill
/// with its beginning what it waits for to become empty.
pub(crate) fn write_from(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    offset: u64,
    data: &[u8],
    taken: &mut u64,
) -> Result<Ticket> {
    check_range(kernel, volume, offset, data.len() as u64)?;
    let size = BLOCK_BYTES as u64;
    let mut ticket = None;
    while *taken < data.len() as u64 {
        let at = offset + *taken;
        let rest = &data[*taken as usize..];
        let edge = ((size - at % size) % size).min(rest.len() as u64) as usize;
        let bytes = if edge > 0 {
            edge
        } else if rest.len() >= BLOCK_BYTES {
            (rest.len() / BLOCK_BYTES).min(PIECE) * BLOCK_BYTES
        } else {
            rest.len()
        };
        let part = &rest[..bytes];
        let (now, blocks) = if bytes.is_multiple_of(BLOCK_BYTES) {
            write_blocks(kernel, scheme, volume, Lba(at / size), part)?
        } else {
            (edit(kernel, scheme, volume, at, part)?, 1)
        };
        ticket = Some(now);
        *taken += bytes.min(blocks * BLOCK_BYTES) as u64;
    }
    add(&kernel.counters.client_blocks, (data.len() as u64).div_ceil(size));
    Ok(ticket.unwrap_or_else(|| kernel.newest()))
}

/// Makes bytes read as zeroes.
pub(crate) fn write_zeroes(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    offset: u64,
    bytes: u64,
    keep: bool,
    taken: &mut u64,
) -> Result<Ticket> {
    check_range(kernel, volume, offset, bytes)?;
    let size = BLOCK_BYTES as u64;
    let zeroes = [0u8; BLOCK_BYTES];
    let mut ticket = None;
    while *taken < bytes {
        let (at, rest) = (offset + *taken, bytes - *taken);
        let edge = ((size - at % size) % size).min(rest);
        let part = if edge > 0 {
            edge
        } else if rest >= size {
            rest / size * size
        } else {
            rest
        };
        ticket = Some(if part.is_multiple_of(size) {
            punch(kernel, scheme, volume, at / size, (at + part) / size, keep)?
        } else {
            edit(kernel, scheme, volume, at, &zeroes[..part as usize])?
        });
        *taken += part;
    }
    Ok(ticket.unwrap_or_else(|| kernel.newest()))
}

/// Drops bytes. Blocks that are not filled by them are left as they are: trimming is advice.
pub(crate) fn trim(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    offset: u64,
    bytes: u64,
) -> Result<Ticket> {
    check_range(kernel, volume, offset, bytes)?;
    let size = BLOCK_BYTES as u64;
    let (first, end) = (offset.div_ceil(size), (offset + bytes) / size);
    if first < end { punch(kernel, scheme, volume, first, end, false) } else { Ok(kernel.newest()) }
}

/// Refuses ranges that the volume does not have, and volumes that nobody can read.
pub(crate) fn check_range(
    kernel: &Kernel,
    volume: VolumeId,
    offset: u64,
    bytes: u64,
) -> Result<()> {
    add(&kernel.counters.client_changes, 1);
    let state = kernel.state.lock();
    let size = state.volumes.alive(volume)?.blocks * BLOCK_BYTES as u64;
    if offset.checked_add(bytes).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::new(
        Kind::InvalidInput,
        format!("{bytes} bytes at {offset} reach beyond the end of the volume ({size} bytes)"),
    ))
}

/// Adds whole blocks to the open window: all of them, or as many of the first as there is space
/// for, at least one. Returns how many.
fn write_blocks(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    first: Lba,
    data: &[u8],
) -> Result<(Ticket, usize)> {
    let (all, _) = data.as_chunks::<BLOCK_BYTES>();
    let zero: [bool; PIECE] =
        std::array::from_fn(|n| all.get(n).is_some_and(|bytes| block::is_zero(bytes)));
    let mut answers = Answers::default();
    let (Admitted { mut state, placed, keep, .. }, granted) = loop {
        let mut admitted = admit_blocks(kernel, scheme, volume, first, all, &zero)?;
        let (state, zero) = (&mut admitted.state, &zero[..admitted.blocks]);
        match quota::grant(kernel, state, volume, first, zero, &answers)? {
            Verdict::Take(granted) => break (admitted, granted),
            Verdict::Ask(tables) => {
                drop(admitted);
                answers.mapped = Some(quota::ask(kernel, tables, volume, first, all.len()));
            }
            Verdict::LookUp(left) => {
                let releases = state.releases.count();
                let domain = state.volumes.alive(volume)?.domain;
                drop(admitted);
                let found = place_first(kernel, domain, &all[0])?;
                let found = found.ok_or_else(|| left.reached(kernel))?;
                answers.stored = Some((found, releases));
            }
        }
    };
    let placed = placed.or(granted.placed);
    let blocks = &all[..granted.blocks];
    let mut n = 0;
    while n < blocks.len() {
        let lba = first.plus(n as u64);
        make_room(kernel, &mut state);
        if zero[n] {
            let run = zero[n..blocks.len()].iter().take_while(|&&zero| zero).count();
            state.punch(volume, lba.0, lba.0 + run as u64, keep);
            add(&kernel.counters.zero_blocks, run as u64);
            n += run;
            continue;
        }
        let again = state.windows.open().holds(volume, lba);
        granted.charge(kernel, &mut state, (volume, lba, again), n);
        state.put(volume, lba, false).0.copy_from_slice(&blocks[n]);
        if let Some(placed) = placed {
            state.windows.set_placed(volume, lba, placed);
        }
        n += 1;
    }
    Ok((Ticket(state.windows.open().number.0), blocks.len()))
}

/// The first blocks of a write for which the store has space.
struct Admitted<'k> {
    state: MutexGuard<'k, State>,
    /// How many, at least one.
    blocks: usize,
    /// Of a single block on a full store: where it is stored.
    placed: Option<Placed>,
    /// Zeroes are kept.
    keep: bool,
}

/// Admits whole blocks: all of them, or as many of the first as there is space for.
fn admit_blocks<'k>(
    kernel: &'k Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    first: Lba,
    mut blocks: &[[u8; BLOCK_BYTES]],
    zero: &[bool],
) -> Result<Admitted<'k>> {
    let mut state = kernel.state.lock();
    let (mut placed, mut keep) = (None, true);
    loop {
        let new = zero[..blocks.len()].iter().filter(|&&zero| !zero).count();
        match admit_data(kernel, scheme, &mut state, volume, new as u64)? {
            Admission::Granted => break,
            Admission::Wait => return Err(wait()),
            Admission::Full if blocks.len() > 1 => blocks = &blocks[..blocks.len() / 2],
            // A block of zeroes takes no space when it is a hole, and one that is stored
            // already takes little.
            Admission::Full if zero[0] => {
                keep = false;
                admit_known(kernel, scheme, &mut state, Purpose::FreesSpace)?;
                break;
            }
            // Whether it is stored already, an answer must not tell.
            Admission::Full if !takes_duplicates(&state) => return Err(full()),
            Admission::Full => {
                let releases = state.releases.count();
                let domain = state.volumes.alive(volume)?.domain;
                drop(state);
                placed = Some(place_first(kernel, domain, &blocks[0])?.ok_or_else(full)?);
                state = kernel.state.lock();
                // A critical block needs a block of its own.
                if state.volumes.get(volume)?.no_dedup.holds(first) {
                    return Err(full());
                }
                admit_known(kernel, scheme, &mut state, Purpose::Known)?;
                if state.releases.count() != releases {
                    return Err(wait());
                }
                break;
            }
        }
    }
    state.volumes.check_writable(volume)?;
    if zero[..blocks.len()].contains(&true) {
        let room = client_ranges_left(kernel, scheme, &mut state);
        blocks = &blocks[..before_range(&zero[..blocks.len()], room)];
    }
    if blocks.is_empty() {
        return Err(wait_for_ranges(kernel, &mut state));
    }
    Ok(Admitted { state, blocks: blocks.len(), placed, keep })
}

/// Admits a change that needs no new block.
pub(crate) fn admit_known(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &mut State,
    purpose: Purpose,
) -> Result<()> {
    match admit(kernel, scheme, state, 0, purpose)? {
        Admission::Granted => Ok(()),
        Admission::Wait => Err(wait()),
        Admission::Full => Err(full()),
    }
}

/// Closes the open window when it is as large as windows get.
pub(crate) fn make_room(kernel: &Kernel, state: &mut State) {
    let open = state.windows.open();
    if open.slots() >= kernel.settings.window_blocks
        || open.ranges.len() >= kernel.settings.limits.ranges && kernel.keeps(Rule::RangesLimited)
        || open.records() as u64 + 1 >= PER_WINDOW_MAX
    {
        state.windows.close();
    }
}

/// With a full store, or a full domain: where a block is stored already, found before its write is
/// acknowledged; `None` when it is not.
fn place_first(kernel: &Kernel, domain: u32, bytes: &[u8; BLOCK_BYTES]) -> Result<Option<Placed>> {
    let mut copy = Block::zeroed();
    copy.0.copy_from_slice(bytes);
    stored(kernel, domain, &copy)
}

/// Makes whole blocks read as zeroes.
pub(crate) fn punch(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    start: u64,
    end: u64,
    keep: bool,
) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    let mut keep = keep && end - start <= KEEP_BLOCKS_MAX;
    // Zeroes that are kept may need new map pages: with a full store they are a hole.
    // Kept they are admitted like a block: a client can ask which of both they became, and must not
    // learn how much is free where writes are refused earlier.
    let admission = if keep {
        admit_data(kernel, scheme, &mut state, volume, 1)?
    } else {
        admit(kernel, scheme, &mut state, 0, Purpose::FreesSpace)?
    };
    match admission {
        Admission::Granted => {}
        Admission::Wait => return Err(wait()),
        Admission::Full if keep => {
            keep = false;
            admit_known(kernel, scheme, &mut state, Purpose::FreesSpace)?;
        }
        Admission::Full => return Err(full()),
    }
    state.volumes.check_writable(volume)?;
    admit_client_range(kernel, scheme, &mut state)?;
    make_room(kernel, &mut state);
    state.punch(volume, start, end, keep);
    Ok(Ticket(state.windows.open().number.0))
}

/// Changes a part of one block: reads it, unless it is in memory, and writes it whole. A change
/// of the same block by somebody else meanwhile is noticed, and the edit begins again.
fn edit(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    volume: VolumeId,
    offset: u64,
    bytes: &[u8],
) -> Result<Ticket> {
    let lba = Lba(offset / BLOCK_BYTES as u64);
    let at = (offset % BLOCK_BYTES as u64) as usize;
    let mut block = Block::zeroed();
    loop {
        let (seen, tables, domain) = {
            let mut state = kernel.state.lock();
            let domain = state.volumes.alive(volume)?.domain;
            match admit_data(kernel, scheme, &mut state, volume, 1)? {
                Admission::Granted => {}
                Admission::Wait => return Err(wait()),
                Admission::Full => return Err(full()),
            }
            if let Some(open) = state.windows.edit(volume, lba) {
                open.0[at..at + bytes.len()].copy_from_slice(bytes);
                return Ok(Ticket(state.windows.open().number.0));
            }
            let seen = state.locate(volume, lba);
            if let Where::Window(window) = &seen {
                match window.find(volume, lba) {
                    Some(Found::Block(found)) => block.0 = found.0,
                    _ => block.0.fill(0),
                }
            }
            (seen, state.overlays.tables().clone(), domain)
        };
        let entry = match &seen {
            Where::Window(_) => None,
            Where::Zero { .. } => Some(MapEntry::Zero),
            Where::Overlay(entry) => Some(*entry),
            Where::Tables => Some(map_entry(kernel, &tables, volume, lba)?),
        };
        match entry {
            None => {}
            Some(MapEntry::Hole | MapEntry::Zero) => block.0.fill(0),
            Some(MapEntry::Lost) => return Err(super::read::lost(volume, lba)),
            Some(MapEntry::Block { pba, form, prefix }) => {
                let wanted = Wanted { pba, form, prefix };
                read_block(kernel, (volume, domain), lba, wanted, &mut block)?
            }
        }
        let mapped = match (&seen, &entry) {
            (Where::Window(window), _) => matches!(window.find(volume, lba), Some(Found::Block(_))),
            (_, entry) => entry.is_some_and(|entry| entry.is_block()),
        };
        block.0[at..at + bytes.len()].copy_from_slice(bytes);
        let mut state = kernel.state.lock();
        state.volumes.check_writable(volume)?;
        let same = match (&seen, state.locate(volume, lba)) {
            (Where::Window(then), Where::Window(now)) => std::sync::Arc::ptr_eq(then, &now),
            (Where::Overlay(then), Where::Overlay(now)) => *then == now,
            (Where::Tables, Where::Tables) => {
                std::sync::Arc::ptr_eq(&tables, state.overlays.tables())
            }
            (Where::Zero { .. }, Where::Zero { .. }) => true,
            _ => false,
        };
        if !same || state.windows.open().holds(volume, lba) {
            continue;
        }
        if block.is_zero() {
            admit_client_range(kernel, scheme, &mut state)?;
        }
        make_room(kernel, &mut state);
        if block.is_zero() {
            state.punch(volume, lba.0, lba.0 + 1, true);
        } else {
            quota::charge_one(kernel, &mut state, (volume, lba), mapped)?;
            state.put(volume, lba, false).0 = block.0;
        }
        return Ok(Ticket(state.windows.open().number.0));
    }
}

/// How many blocks come before the zeroes that would be range number `room`, counted from 0.
fn before_range(zero: &[bool], room: u64) -> usize {
    let mut begins = (0..zero.len()).filter(|&n| zero[n] && (n == 0 || !zero[n - 1]));
    begins.nth(room.min(zero.len() as u64) as usize).unwrap_or(zero.len())
}
