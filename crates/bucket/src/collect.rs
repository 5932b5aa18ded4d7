//! Deleting objects that nothing names: those that a frame dropped, when a day is over, and those of writers
//! that ended before their frame. Packs with few bytes that files have are written again before.
//!
//! *Crash argument:* an object goes after the frame that dropped it. `Gone` of it follows in a later frame; until
//! then the next collection deletes it again, and finds nothing.
//!
//! *Others' objects:* only names of the exact form that this crate makes are deleted. A prefix may have another
//! archive below one of these folders, and anything else.
//!
//! *Other processes:* a collector that was shut out may go on deleting. All that it deletes was dropped by a frame, or is of a
//! writer that had ended before: no frame names these again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use onefold_core::{Kind, Result};

use crate::{
    files::PENDING_MAX,
    format::{Id, LEASES, PROBES, Record, Sort, frame_name, is_probe, lease_name, lease_of},
    reads::whole_pack,
    rules::Rule,
    shared::Shared,
    state::{Extent, Pack},
    verify::listed,
    writer::Bucket,
};

/// Objects that are deleted until a frame says so.
const BATCH: usize = 500;

/// Most bytes that one collection writes again.
const REWRITTEN_MAX: u64 = 1 << 30;

/// Most bytes that one collection reads to write some of them again, and one pack more.
const READ_MAX: u64 = 4 << 30;

/// The result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects that were deleted, and their bytes.
    pub deleted: (u64, u64),
    /// Objects without a frame that were deleted.
    pub orphans: u64,
    /// Objects that wait for their day to end, and their bytes.
    pub waiting: (u64, u64),
    /// Bytes that were written again.
    pub rewritten: u64,
    /// Packs that would be written again and stay as they are: they can't be read, or have another hash.
    pub damaged: u64,
}

impl Bucket {
    /// Deletes what nothing names and whose time is over.
    ///
    /// # Errors
    /// Why this process writes no more, and those of the store.
    pub fn collect(&self) -> Result<Collected> {
        let shared = &*self.shared;
        shared.core.lock().writer()?;
        let mut collected = Collected::default();
        rewrite_sparse(shared, &mut collected)?;
        shared.commit()?;
        delete_dropped(shared, &mut collected)?;
        delete_orphans(shared, &mut collected)?;
        shared.commit()?;
        Ok(collected)
    }
}

/// When a frame was created, by the store's clock.
fn time_of(shared: &Shared, frame: u64) -> Result<u64> {
    shared.log.get(&frame_name(frame), 0, 1, None).map(|body| body.modified)
}

fn delete_dropped(shared: &Shared, collected: &mut Collected) -> Result<()> {
    let (newest, dropped) = {
        let core = shared.core.lock();
        (core.state.at, core.state.dropped.clone())
    };
    let settings = &shared.log.settings;
    let now = match settings.keeps(Rule::TrashByStoreClock) {
        true => time_of(shared, newest)?,
        false => shared.log.pace.wall(),
    };
    let mut times: HashMap<u64, u64> = HashMap::new();
    let mut gone = Vec::new();
    for (id, dropped) in dropped {
        // Another thread's commit is on its way: the log still names what that drops.
        if dropped.frame > newest {
            collected.waiting.0 += 1;
            collected.waiting.1 += dropped.bytes;
            continue;
        }
        let since = match times.get(&dropped.frame) {
            Some(since) => *since,
            None => time_of(shared, dropped.frame)?,
        };
        times.insert(dropped.frame, since);
        let is_due = now.saturating_sub(since) >= settings.trash
            || !settings.keeps(Rule::TrashWaits)
            || dropped.secret;
        if !is_due {
            collected.waiting.0 += 1;
            collected.waiting.1 += dropped.bytes;
            continue;
        }
        shared.log.ask(&mut || shared.log.objects.delete(&id.to_string()))?;
        collected.deleted.0 += 1;
        collected.deleted.1 += dropped.bytes;
        gone.push(id);
        if gone.len() == BATCH {
            are_gone(shared, &mut gone)?;
        }
    }
    if !settings.keeps(Rule::FramesStay) {
        let table_frame = shared.core.lock().state.table_frame;
        for number in 2..table_frame {
            shared.log.objects.delete(&frame_name(number))?;
        }
    }
    are_gone(shared, &mut gone)
}

/// The log says that these were deleted.
fn are_gone(shared: &Shared, gone: &mut Vec<Id>) -> Result<()> {
    let mut core = shared.core.lock();
    for id in gone.drain(..) {
        if core.state.dropped.remove(&id).is_some() {
            core.pending.push(Record::Gone { id });
        }
    }
    drop(core);
    shared.commit()
}

/// Deletes what no frame names, of writers that ended before this one joined: only one writes at a time.
fn delete_orphans(shared: &Shared, collected: &mut Collected) -> Result<()> {
    let log = &shared.log;
    let own = shared.core.lock().writer()?;
    let by_owner = log.settings.keeps(Rule::OrphansByOwner);
    let mut due = Vec::new();
    for sort in Sort::ALL {
        for id in listed(log, sort.folder(), Id::parse)?.into_keys() {
            if shared.core.lock().state.knows(&id) {
                continue;
            }
            let is_due = match by_owner {
                true => id.writer < own,
                false => {
                    let written =
                        log.get(&id.to_string(), 0, 1, None).map_or(u64::MAX, |body| body.modified);
                    log.pace.wall().saturating_sub(written) >= log.settings.trash
                }
            };
            if is_due {
                due.push(id.to_string());
            }
        }
    }
    collected.orphans = due.len() as u64;
    let leases = listed(log, LEASES, lease_of)?.into_keys().filter(|writer| *writer < own);
    due.extend(leases.map(lease_name));
    // Another host may be trying the store now: its name may not be free for it again.
    let now = time_of(shared, shared.core.lock().state.at)?;
    let probes = listed(log, PROBES, |name| is_probe(name).then(|| name.to_owned()))?;
    for name in probes.into_keys() {
        let made = log.get(&name, 0, 1, None).map_or(u64::MAX, |body| body.modified);
        if now.saturating_sub(made) >= log.settings.trash {
            due.push(name);
        }
    }
    for name in due {
        log.ask(&mut || log.objects.delete(&name))?;
    }
    collected.orphans += log.ask(&mut || log.objects.sweep())?;
    Ok(())
}

/// Writes again what is left of packs of which files have less than half. Each pack is read whole and has its
/// hash before a byte of it is copied: the copy's record calls it sound.
fn rewrite_sparse(shared: &Shared, collected: &mut Collected) -> Result<()> {
    let mut places: BTreeMap<(u64, u64), (Pack, Vec<(u64, u64, Extent)>)> = BTreeMap::new();
    {
        let core = shared.core.lock();
        let state = &core.state;
        for (inode, file) in &state.inodes {
            for (at, extent) in &file.extents {
                let sparse =
                    |pack: &&Pack| pack.inline.is_none() && pack.live * 2 < u64::from(pack.bytes);
                if let Some(pack) = state.packs.get(&extent.pack).filter(sparse) {
                    let (_, extents) = places.entry(extent.pack).or_insert((*pack, Vec::new()));
                    extents.push((*inode, *at, *extent));
                }
            }
        }
    }
    let mut read = 0;
    for (id, (pack, extents)) in places {
        if collected.rewritten >= REWRITTEN_MAX || read >= READ_MAX {
            return Ok(());
        }
        let fresh = shared.core.lock().fresh.get(&id).cloned();
        let whole = match fresh {
            Some(fresh) => fresh,
            None => match whole_pack(&shared.log, id, &pack) {
                // Damage is for who checks the archive; the pack stays.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Io) => {
                    collected.damaged += 1;
                    continue;
                }
                whole => Arc::new(whole?),
            },
        };
        read += whole.len() as u64;
        for (inode, at, extent) in extents {
            let from = extent.pack_at as usize;
            let Some(bytes) = whole.get(from..from + extent.bytes as usize) else { continue };
            let mut core = shared.core.lock();
            let now = core.state.inodes.get(&inode).and_then(|file| file.extents.get(&at));
            if now == Some(&extent) {
                core.write_short(inode, at, bytes, shared.log.settings.small_max)?;
                collected.rewritten += extent.bytes;
            }
            let is_full = core.pending.len() > PENDING_MAX;
            drop(core);
            shared.sent_on()?;
            if is_full {
                shared.commit()?;
            }
        }
    }
    Ok(())
}
