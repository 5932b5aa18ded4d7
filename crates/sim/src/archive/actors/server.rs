//! Volumes of a served archive under simulation, and the oracle of what they may read as.
//!
//! Each read gives the last acknowledged write. When the server dies, all volumes are as they were
//! after some change, and each one has what its last acknowledged FLUSH covers: a drain takes everything
//! at once, and is there as a whole or not at all. Where a disk gets full or rots, that holds for each
//! block by itself.
//!
//! What a drain lost of a volume is told by a flush of this volume, once, and by no other's. A flush that
//! finds no room finds none either when the other volumes are gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_archive::{Archive, ArchiveExports, Ingest, Volumes, create_volume_in};
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Error, Exports, ExtentKind, Kind, Lba, Volume, block::bytes_mut,
};

use super::replay::Replaying;
use crate::{
    archive::{
        model::{BLOCK, Cell, Disk, Unsure},
        params::Profile,
        run::{Flow, Sim, Stop},
    },
    checker::{Checker, Failure},
};

/// The serving process.
pub(crate) struct Serving {
    pub(crate) archive: Arc<Archive>,
    pub(crate) ingest: Arc<Ingest>,
    volumes: Arc<Volumes>,
    exports: ArchiveExports,
    pub(super) replaying: Replaying,
    /// Volumes with a trimmed range that waits for sure, after so many write-backs.
    trimmed: BTreeSet<String>,
    write_backs: u64,
    /// Volumes of which something was lost, until somebody who was told flushed again.
    untold: BTreeSet<u64>,
}

impl Serving {
    /// Write-backs so far; they leave no trimmed range that waits.
    fn write_backs(&mut self) -> u64 {
        let now = self.volumes.counts().write_backs;
        if now != self.write_backs {
            self.trimmed.clear();
            self.write_backs = now;
        }
        now
    }
}

fn read(volume: &dyn Volume, offset: usize, bytes: usize) -> Result<Vec<u8>, Error> {
    let (first, end) = (offset / BLOCK_BYTES, (offset + bytes).div_ceil(BLOCK_BYTES));
    let mut blocks = Block::zeroed_vec(end - first);
    let mut reads = [BlockRead { first: Lba(first as u64), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result?;
    Ok(bytes_mut(&mut blocks)[offset % BLOCK_BYTES..][..bytes].to_vec())
}

impl Sim {
    /// A step of the server, of a client of its volumes, or of who administers them.
    pub(crate) fn volume_move(&mut self) -> Flow {
        if self.actors.serving.is_none() {
            return match self.rng.weighted(&[6, 2]) {
                0 => self.serve(),
                _ => self.administer(),
            };
        }
        if self.upgraded.kinds.clones && self.clones_rng.percent(4) {
            return self.clone_volume();
        }
        match self.rng.weighted(&[30, 12, 6, 12, 6, 4, 2, 2]) {
            0 => self.write(),
            1 => self.read(),
            2 => self.zero(),
            3 => self.flush(),
            4 => self.tend(),
            5 => self.administer(),
            6 => self.extents(),
            _ => self.end_server(),
        }?;
        if self.take_losses() { self.look_at_all() } else { Ok(()) }
    }

    /// Notes what write-backs lost; true when that was something.
    fn take_losses(&mut self) -> bool {
        let Some(serving) = &mut self.actors.serving else { return false };
        let losses = serving.volumes.take_losses();
        let any = !losses.is_empty();
        serving.untold.extend(losses.into_iter().map(|loss| loss.volume));
        if any {
            self.reach.hit("a drain lost a damaged block");
        }
        any
    }

    /// Begins to serve, and settles what the server before left open.
    fn serve(&mut self) -> Flow {
        let archive = self.open(true)?;
        let ingest = match Ingest::begin(&archive, false, true) {
            Err(error) if error.kind() == Kind::Busy && self.is_putting() => {
                self.reach.hit("a server waits for a put");
                return Ok(());
            }
            Err(error) => return Err(self.judge("serve", &error)),
            Ok(ingest) => ingest,
        };
        self.serve_on(archive, ingest)
    }

    fn serve_on(&mut self, archive: Arc<Archive>, ingest: Arc<Ingest>) -> Flow {
        let volumes = Volumes::new(&ingest, self.now);
        let exports = ArchiveExports(volumes.clone());
        self.say(|| "served".into());
        let replaying = Replaying::new(&ingest, self.now);
        self.actors.serving = Some(Serving {
            archive,
            ingest,
            volumes,
            exports,
            replaying,
            trimmed: BTreeSet::new(),
            write_backs: 0,
            untold: BTreeSet::new(),
        });
        self.resolve_volumes()
    }

    /// All volumes read as after one change that may be the last durable one.
    pub(crate) fn resolve_volumes(&mut self) -> Flow {
        let mut found: BTreeMap<String, Vec<Option<Vec<u8>>>> = BTreeMap::new();
        for (name, disk) in self.disks.clone() {
            let volume = self.export(&name)?;
            if volume.size() != (disk.cells.len() * BLOCK) as u64 {
                let message = format!(
                    "volume {name} has {} bytes instead of {} blocks",
                    volume.size(),
                    disk.cells.len()
                );
                return Err(Failure::new(Checker::Volumes, message).into());
            }
            let mut blocks = Vec::new();
            for block in 0..disk.cells.len() {
                blocks.push(match read(&*volume, block * BLOCK, BLOCK) {
                    Ok(bytes) => Some(bytes),
                    Err(error) if error.kind() == Kind::Corrupt && self.damaged => {
                        self.reach.hit("damage was told");
                        None
                    }
                    Err(error) => return Err(self.judge("read", &error)),
                });
            }
            found.insert(name, blocks);
        }
        let matches = |version: &Option<Arc<Vec<u8>>>, read: &[u8]| match version {
            Some(bytes) => bytes[..] == *read,
            None => read.iter().all(|&byte| byte == 0),
        };
        // One change after which everything was as it is.
        let of_disk = |(name, disk)| -> Vec<(&Cell, &Option<Vec<u8>>)> {
            let (name, disk): (&String, &Disk) = (name, disk);
            let known = disk
                .cells
                .iter()
                .zip(&found[name])
                .enumerate()
                .filter(|(block, _)| !disk.unknown.contains(block));
            known.map(|(_, pair)| pair).collect()
        };
        let cells: Vec<_> = self.disks.iter().flat_map(of_disk).collect();
        let mut stamps: Vec<u64> =
            cells.iter().flat_map(|(cell, _)| cell.iter().map(|version| version.0)).collect();
        stamps.sort_unstable();
        stamps.dedup();
        let as_of = |cell: &Cell, stamp: u64| {
            cell.iter().rposition(|version| version.0 <= stamp).unwrap_or(0)
        };
        // Of each cell that was read, which of its versions it is.
        let read_as = |(cell, read): &(&Cell, &Option<Vec<u8>>)| {
            let read = read.as_ref()?;
            Some(cell.iter().map(|version| matches(&version.1, read)).collect::<Vec<bool>>())
        };
        let read_as: Vec<_> =
            cells.iter().filter_map(|pair| Some((pair.0, read_as(pair)?))).collect();
        let whole = |stamp: &&u64| read_as.iter().all(|(cell, is)| is[as_of(cell, **stamp)]);
        let pending = cells.iter().any(|(cell, _)| cell.len() > 1);
        let one = stamps.iter().rev().find(whole).copied();
        if one.is_none() && !stamps.is_empty() && self.params.profile == Profile::Crashes {
            return Err(Failure::new(
                Checker::DurableSurvives,
                "the volumes are as after no change",
            )
            .into());
        }
        if pending {
            self.reach.hit(if one == stamps.last().copied() {
                "all unflushed writes were there"
            } else {
                "unflushed writes were lost"
            });
        }
        for (name, disk) in &mut self.disks {
            for (block, (cell, read)) in disk.cells.iter_mut().zip(&found[name]).enumerate() {
                let Some(read) = read else {
                    disk.unknown.insert(block);
                    continue;
                };
                if disk.unknown.contains(&block) {
                    continue;
                }
                let Some(version) = cell.iter().rposition(|version| matches(&version.1, read))
                else {
                    let message = format!(
                        "block {block} of volume {name} has none of its {} versions",
                        cell.len()
                    );
                    return Err(Failure::new(Checker::DurableSurvives, message).into());
                };
                let version = one.map_or(version, |stamp| as_of(cell, stamp));
                *cell = vec![cell[version].clone()];
            }
        }
        Ok(())
    }

    fn export(&mut self, name: &str) -> Result<Arc<dyn Volume>, Stop> {
        let Some(serving) = &self.actors.serving else { return Err(Stop::Down) };
        match serving.exports.open(name) {
            Ok(volume) => Ok(volume),
            Err(error) => Err(self.judge("export", &error)),
        }
    }

    fn pick_volume(&mut self) -> Option<(String, usize)> {
        let names: Vec<String> = self.disks.keys().cloned().collect();
        let name = self.rng.pick(&names)?.clone();
        let bytes = self.disks[&name].cells.len() * BLOCK;
        Some((name, bytes))
    }

    /// A range of a volume, mostly of whole sectors.
    fn range(&mut self, bytes: usize, most: u64) -> (usize, usize) {
        let unit = if self.rng.percent(15) {
            1
        } else {
            [512, 4096, 16 << 10, BLOCK][self.rng.weighted(&[1, 3, 2, 2])]
        };
        let offset = self.rng.below((bytes / unit) as u64) as usize * unit;
        let n = (self.rng.within(1, most / unit.min(most as usize) as u64) as usize * unit)
            .min(bytes - offset);
        (offset, n)
    }

    fn write(&mut self) -> Flow {
        let Some((name, bytes)) = self.pick_volume() else { return self.administer() };
        let (offset, n) = self.range(bytes, 160 << 10);
        let mut data = Vec::with_capacity(n);
        if self.rng.percent(20) {
            // Writes bytes that the volume has already, perhaps at their own place.
            data.resize(n, 0);
            let from = if self.rng.percent(70) {
                offset
            } else {
                self.rng.below((bytes - n) as u64 + 1) as usize
            };
            self.disks[&name].read(from, &mut data);
        }
        while data.len() < n {
            if self.rng.percent(10) {
                let mut fresh = vec![0; self.rng.within(1, 4_000) as usize];
                self.rng.fill(&mut fresh);
                data.extend(fresh);
            } else if let Some(piece) = self.rng.pick(&self.pool) {
                data.extend_from_slice(piece);
            }
        }
        data.truncate(n);
        let volume = self.export(&name)?;
        self.say(|| format!("write {n} bytes at {offset} of {name}"));
        if self.disks[&name].read_only {
            return self.denied("write", volume.write(offset as u64, &data).map(|_| ()));
        }
        if let Some(serving) = &mut self.actors.serving {
            serving.trimmed.remove(&name);
        }
        // Until it is acknowledged it may be there or not.
        self.changes += 1;
        let stamp = self.changes;
        let before = self.disks[&name].clone();
        if let Some(disk) = self.disks.get_mut(&name) {
            disk.change(stamp, offset, &data);
        }
        match volume.write(offset as u64, &data) {
            Ok(ticket) => {
                if self.rng.percent(5) {
                    let waited = volume.wait(ticket);
                    return self.flushed("wait", &name, waited);
                }
                Ok(())
            }
            Err(error) => {
                let ended = self.refused("write", &error);
                if ended.is_ok() {
                    self.disks.insert(name, before);
                    return self.look_at_all();
                }
                ended
            }
        }
    }

    fn zero(&mut self) -> Flow {
        let Some((name, bytes)) = self.pick_volume() else { return Ok(()) };
        let (offset, n) = self.range(bytes, 500 << 10);
        let trims = self.rng.percent(50);
        let (start, end) = if trims {
            (offset.next_multiple_of(BLOCK_BYTES), (offset + n) / BLOCK_BYTES * BLOCK_BYTES)
        } else {
            (offset, offset + n)
        };
        let volume = self.export(&name)?;
        self.say(|| {
            format!("{} {n} bytes at {offset} of {name}", if trims { "trim" } else { "zero" })
        });
        if self.disks[&name].read_only {
            let done = volume.write_zeroes(offset as u64, n as u64, false).map(|_| ());
            return self.denied("zero", done);
        }
        let (first, last) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        // The edges are changes of their own.
        let parts = if first <= last {
            vec![(start, first), (last, end), (first, last)]
        } else {
            vec![(start, end)]
        };
        for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
            self.changes += 1;
            let stamp = self.changes;
            if let Some(disk) = self.disks.get_mut(&name) {
                disk.change(stamp, from, &vec![0; to - from]);
            }
        }
        let whole = (first < last).then_some(start == first && last == end);
        let before = self.trims_wait(&name, whole);
        let done = if trims {
            volume.trim(offset as u64, n as u64)
        } else {
            volume.write_zeroes(offset as u64, n as u64, false)
        };
        match done {
            Ok(_) if whole.is_some() => self.look_at_trims(name, before),
            Ok(_) => Ok(()),
            Err(error) => {
                self.refused("zero", &error)?;
                self.look_at_all()
            }
        }
    }

    /// Before blocks of a volume are zeroed; `whole` is true when no part of a block is. What may be
    /// the only zeroed range of the volume may be written over by the parts. Gives the write-backs so
    /// far when as many ranges wait as may.
    fn trims_wait(&mut self, name: &str, whole: Option<bool>) -> Option<u64> {
        let serving = self.actors.serving.as_mut()?;
        let before = serving.write_backs();
        if whole != Some(true) {
            serving.trimmed.remove(name);
        }
        // A volume for which a full disk has no room is written back by itself.
        let waiting = match self.params.profile {
            Profile::FullDisk => usize::from(serving.trimmed.contains(name)),
            _ => serving.trimmed.len(),
        };
        (waiting >= self.params.trimmed_max).then_some(before)
    }

    /// After blocks of a volume were zeroed. Where as many ranges waited as may, they must have been
    /// written back before.
    fn look_at_trims(&mut self, name: String, full: Option<u64>) -> Flow {
        let Some(serving) = &mut self.actors.serving else { return Ok(()) };
        let now = serving.write_backs();
        serving.trimmed.insert(name);
        let Some(before) = full else { return Ok(()) };
        if now == before {
            let (found, most) = (serving.trimmed.len(), self.params.trimmed_max);
            let what = format!("trimmed ranges of {found} volumes wait, and {most} ranges may");
            return Err(Failure::new(Checker::Limits, what).into());
        }
        self.reach.hit("as many trimmed ranges wait as may");
        Ok(())
    }

    fn look_at_all(&mut self) -> Flow {
        for name in self.disks.keys().cloned().collect::<Vec<_>>() {
            self.look_again(&name)?;
        }
        Ok(())
    }

    /// Reads a volume after a change that may have been done in part. The content that a block
    /// reads as becomes its newest version in the model.
    fn look_again(&mut self, name: &str) -> Flow {
        let volume = self.export(name)?;
        for block in 0..self.disks[name].cells.len() {
            let known = !self.disks[name].unknown.contains(&block);
            let Ok(bytes) = read(&*volume, block * BLOCK, BLOCK) else {
                if let Some(disk) = self.disks.get_mut(name) {
                    disk.unknown.insert(block);
                }
                continue;
            };
            if !known {
                continue;
            }
            let zero = bytes.iter().all(|&byte| byte == 0);
            let Some(cell) = self.disks.get_mut(name).map(|disk| &mut disk.cells[block]) else {
                continue;
            };
            let is = |version: &(u64, Option<Arc<Vec<u8>>>)| {
                version.1.as_ref().map_or(zero, |known| **known == bytes)
            };
            let Some(n) = cell.iter().rposition(is) else {
                return Err(Failure::new(
                    Checker::NeverWrong,
                    format!("block {block} of volume {name} has none of its versions"),
                )
                .into());
            };
            cell.truncate(n + 1);
        }
        Ok(())
    }

    fn read(&mut self) -> Flow {
        let Some((name, bytes)) = self.pick_volume() else { return Ok(()) };
        let (offset, n) = self.range(bytes, 300 << 10);
        let volume = self.export(&name)?;
        self.say(|| format!("read {n} bytes at {offset} of {name}"));
        match read(&*volume, offset, n) {
            Ok(read) => {
                let mut expected = vec![0; n];
                self.disks[&name].read(offset, &mut expected);
                if read == expected {
                    return Ok(());
                }
                let unknown = |at: usize| self.disks[&name].unknown.contains(&(at / BLOCK));
                let wrong = (0..n)
                    .filter(|&at| read[at] != expected[at])
                    .map(|at| offset + at)
                    .filter(|&at| !unknown(at));
                let wrong: Vec<usize> = wrong.collect();
                if wrong.is_empty() {
                    return Ok(());
                }
                let (first, last) = (wrong.first(), wrong.last());
                let message = format!(
                    "{} bytes of volume {name} are wrong, from {first:?} to {last:?}, of {n} read at {offset}",
                    wrong.len()
                );
                Err(Failure::new(Checker::NeverWrong, message).into())
            }
            Err(error) if error.kind() == Kind::Corrupt && self.damaged => {
                self.reach.hit("damage was told");
                Ok(())
            }
            Err(error) => Err(self.judge("read", &error)),
        }
    }

    fn extents(&mut self) -> Flow {
        let Some((name, bytes)) = self.pick_volume() else { return Ok(()) };
        let volume = self.export(&name)?;
        let extents =
            volume.extents(0, bytes as u64, usize::MAX).map_err(|e| self.judge("extents", &e))?;
        let mut at = 0;
        for extent in extents {
            let blocks = at / BLOCK..(at + extent.bytes as usize) / BLOCK;
            let known = !blocks.clone().any(|block| self.disks[&name].unknown.contains(&block));
            if known
                && extent.kind != ExtentKind::Data
                && blocks.clone().any(|block| self.disks[&name].last(block).is_some())
            {
                return Err(Failure::new(
                    Checker::Extents,
                    format!("blocks {blocks:?} of volume {name} are no hole"),
                )
                .into());
            }
            at += extent.bytes as usize;
        }
        if at == bytes {
            Ok(())
        } else {
            Err(Failure::new(Checker::Extents, format!("extents of {at} of {bytes} bytes")).into())
        }
    }

    fn flush(&mut self) -> Flow {
        let Some((name, _)) = self.pick_volume() else { return Ok(()) };
        let volume = self.export(&name)?;
        let sequence = |sim: &Sim| sim.actors.serving.as_ref().map(|s| s.archive.tables().sequence);
        let before = sequence(self);
        let flushed = volume.flush();
        if flushed.is_ok() && sequence(self) > before {
            self.look_at_changed_maps()?;
        }
        let is = |kind| flushed.as_ref().is_err_and(|error| error.kind() == kind);
        let (full, told) = (is(Kind::NoSpace), is(Kind::Corrupt));
        self.flushed("flush", &name, flushed)?;
        if told && self.now.is_multiple_of(2) {
            return self.goes_on(&name, &*volume);
        }
        if full && self.now.is_multiple_of(2) { self.look_at_room(&name, &*volume) } else { Ok(()) }
    }

    /// A client that was told what its volume lost flushes again; nobody else has to hear of that loss.
    fn goes_on(&mut self, name: &str, volume: &dyn Volume) -> Flow {
        if let Some(serving) = &mut self.actors.serving {
            let tables = serving.archive.tables();
            let id = tables.volumes.named(name).map_or(0, |(id, _)| id);
            serving.untold.remove(&id);
        }
        self.reach.hit("a client that was told of a loss went on");
        let again = volume.flush();
        self.flushed("flush", name, again)
    }

    /// After a commit few leaves of maps have changed, unless the disk had no room for a checkpoint: who
    /// opens the archive next makes them all anew.
    fn look_at_changed_maps(&mut self) -> Flow {
        let Some(serving) = &self.actors.serving else { return Ok(()) };
        let volumes = &serving.archive.tables().volumes;
        let changed = volumes.changed_leaves();
        let allowed = volumes.changed_leaves_allowed(self.settings().changed_maps);
        if self.params.changed_maps.is_some() && changed == 0 {
            self.reach.hit("leaves of maps made a checkpoint due");
        }
        if changed <= allowed || self.params.profile == Profile::FullDisk {
            return Ok(());
        }
        let message =
            format!("{changed} leaves of maps changed since the checkpoint, {allowed} may");
        Err(Failure::new(Checker::RecoveryCost, message).into())
    }

    /// The disk had no room for a volume. Nor has it when no other volume has anything to write back.
    fn look_at_room(&mut self, name: &str, volume: &dyn Volume) -> Flow {
        let others: Vec<String> =
            self.disks.keys().filter(|other| *other != name).cloned().collect();
        let Some(serving) = &self.actors.serving else { return Ok(()) };
        let archive = serving.archive.clone();
        let before = self.files.used();
        let again = volume.flush();
        if others.is_empty() || again.is_ok() {
            return self.flushed("flush", name, again);
        }
        self.flushed("flush", name, again)?;
        for other in others {
            self.unsure = Some(Unsure::VolumeSize(other.clone(), 0));
            self.say(|| format!("volume {other} deleted"));
            archive.delete_volume(&other).map_err(|error| self.judge("delete", &error))?;
            self.disks.remove(&other);
            self.unsure = None;
        }
        if let Some(serving) = &mut self.actors.serving {
            serving.trimmed.clear();
        }
        let freed = self.files.used() < before;
        let alone = volume.flush();
        if alone.is_ok() && !freed {
            let what = format!("volume {name} had no room for what was written to others");
            return Err(Failure::new(Checker::Limits, what).into());
        }
        self.reach.hit("a volume met a full disk by itself");
        self.flushed("flush", name, alone)
    }

    /// Records the result of a flush, or of a wait for a volume's last change.
    fn flushed(&mut self, what: &str, name: &str, flushed: Result<(), Error>) -> Flow {
        let lost = self.take_losses();
        let untold = self.actors.serving.as_ref().is_some_and(|serving| {
            let tables = serving.archive.tables();
            tables.volumes.named(name).is_ok_and(|(id, _)| serving.untold.contains(&id))
        });
        match flushed {
            Ok(()) if untold => {
                let message = format!("{what}: nobody is told what volume {name} lost");
                Err(Failure::new(Checker::DurableSurvives, message).into())
            }
            Ok(()) => {
                self.say(|| format!("{what}: done"));
                self.reach.hit("volumes flushed");
                if let Some(disk) = self.disks.get_mut(name) {
                    disk.make_durable();
                }
                if lost { self.look_at_all() } else { Ok(()) }
            }
            Err(error)
                if error.kind() == Kind::Corrupt && self.damaged && !self.files.is_down() =>
            {
                let stopped = self.actors.serving.as_ref().map(|serving| serving.volumes.stopped());
                if !untold && matches!(stopped, Some(None)) {
                    let message =
                        format!("{what}: volume {name} lost nothing, and is told {error}");
                    return Err(Failure::new(Checker::Unexplained, message).into());
                }
                // A block that was written in part and could not be completed; the others are
                // there.
                self.look_at_all()
            }
            Err(error) => self.refused(what, &error),
        }
    }

    /// A full disk takes nothing, and that is all.
    fn refused(&mut self, what: &str, error: &Error) -> Flow {
        let _ = self.is_out_of_numbers(error);
        if error.kind() == Kind::NoSpace
            && self.params.profile == Profile::FullDisk
            && !self.files.is_down()
        {
            self.reach.hit("volumes met a full disk");
            return Ok(());
        }
        if error.kind() == Kind::Corrupt && self.damaged && !self.files.is_down() {
            return Ok(());
        }
        Err(self.judge(what, error))
    }

    fn tend(&mut self) -> Flow {
        let Some(serving) = &self.actors.serving else { return Ok(()) };
        let volumes = serving.volumes.clone();
        match volumes.tend(self.now) {
            Ok(()) => {
                if volumes.counts().dirty_bytes == 0 && self.rng.percent(50) {
                    return self.flush();
                }
                Ok(())
            }
            Err(error) => {
                self.refused("tend", &error)?;
                self.look_at_all()
            }
        }
    }

    fn end_server(&mut self) -> Flow {
        // Streams are of the same process.
        if self.actors.backing.as_ref().is_some_and(|backing| backing.served) {
            self.actors.backing = None;
        }
        if self.actors.putting.as_ref().is_some_and(|putting| putting.served) {
            self.actors.putting = None;
        }
        let Some(serving) = self.actors.serving.take() else { return Ok(()) };
        if self.rng.percent(50) {
            self.say(|| "the server is killed".into());
            self.reach.hit("a server killed");
            return Ok(());
        }
        let closed = serving.volumes.close();
        let losses = serving.volumes.take_losses();
        match closed {
            Ok(()) => {
                self.say(|| "close: done".into());
                // What a volume has of which something was lost is looked at by the next server.
                let tables = serving.archive.tables();
                for (name, disk) in &mut self.disks {
                    let is = |id| tables.volumes.named(name).is_ok_and(|(found, _)| found == id);
                    if !losses.iter().any(|loss| is(loss.volume)) {
                        disk.make_durable();
                    }
                }
                Ok(())
            }
            Err(error) => self.refused("close", &error),
        }
    }

    /// Volume verbs, by the server or by another process.
    fn administer(&mut self) -> Flow {
        let archive = match &self.actors.serving {
            // A cut counts for the server from when it knows of it.
            Some(serving) => serving.archive.clone(),
            None => self.admin()?,
        };
        if let Some(serving) = &mut self.actors.serving {
            serving.trimmed.clear();
        }
        if self.upgraded.kinds.clones && self.clones_rng.percent(40) {
            return self.clone_volume();
        }
        if self.disks.len() < 2 && self.rng.percent(60) {
            let name = format!("v{}", self.rng.below(3));
            self.make_way_for_volume(&archive, &name)?;
            let domain = self.domain_of_volume();
            let (blocks, there) = (self.rng.within(1, 5) as usize, self.disks.contains_key(&name));
            let archive = if self.rng.percent(50) { self.admin()? } else { archive };
            self.unsure = (!there).then(|| Unsure::VolumeSize(name.clone(), blocks));
            let bytes = (blocks * BLOCK) as u64 - 5;
            return match create_volume_in(&archive, domain, &name, bytes, self.now) {
                Ok(()) if there => {
                    Err(Failure::new(Checker::Volumes, format!("volume {name} was made twice"))
                        .into())
                }
                Ok(()) => {
                    self.unsure = None;
                    self.disks.insert(name, Disk::new(blocks, domain));
                    Ok(())
                }
                Err(error) if error.kind() == Kind::Exists && there => Ok(()),
                Err(error) => {
                    let ended = self.refused("create volume", &error);
                    if ended.is_ok() {
                        self.unsure = None;
                    }
                    ended
                }
            };
        }
        let Some((name, bytes)) = self.pick_volume() else { return Ok(()) };
        match self.rng.weighted(&[4, 1, 1]) {
            0 => {
                let blocks = self.rng.within(1, 6) as usize;
                if self.disks[&name].read_only {
                    let resized = archive.resize_volume(&name, (blocks * BLOCK) as u64);
                    return self.denied("resize", resized);
                }
                self.unsure = Some(Unsure::VolumeSize(name.clone(), blocks));
                self.say(|| format!("volume {name} from {} to {blocks} blocks", bytes / BLOCK));
                archive
                    .resize_volume(&name, (blocks * BLOCK) as u64)
                    .map_err(|e| self.judge("resize", &e))?;
                if let Some(disk) = self.disks.get_mut(&name) {
                    disk.resize(blocks);
                }
            }
            1 => {
                self.unsure = Some(Unsure::VolumeSize(name.clone(), 0));
                self.say(|| format!("volume {name} deleted"));
                let archive = if self.rng.percent(50) { self.admin()? } else { archive };
                archive.delete_volume(&name).map_err(|e| self.judge("delete", &e))?;
                self.disks.remove(&name);
            }
            _ => {
                let to = format!("v{}", self.rng.below(3));
                if self.disks.contains_key(&to) {
                    return Ok(());
                }
                self.make_way_for_volume(&archive, &to)?;
                self.unsure = Some(Unsure::VolumeName(name.clone(), to.clone()));
                let archive = if self.rng.percent(50) { self.admin()? } else { archive };
                archive.rename_volume(&name, &to).map_err(|e| self.judge("rename volume", &e))?;
                if let Some(disk) = self.disks.remove(&name) {
                    self.disks.insert(to, disk);
                }
            }
        }
        self.unsure = None;
        Ok(())
    }

    /// A volume is made of another one. The server makes durable first what was written.
    fn clone_volume(&mut self) -> Flow {
        let names: Vec<String> = self.disks.keys().cloned().collect();
        let free: Vec<String> =
            (0..3).map(|n| format!("v{n}")).filter(|name| !self.disks.contains_key(name)).collect();
        let (Some(of), Some(name)) =
            (self.clones_rng.pick(&names).cloned(), self.clones_rng.pick(&free).cloned())
        else {
            return Ok(());
        };
        let served = self.actors.serving.is_some();
        let read_only = self.clones_rng.percent(50);
        if self.places.is_some() {
            let archive = self.admin()?;
            self.make_way_for_volume(&archive, &name)?;
        }
        self.unsure = Some(Unsure::VolumeClone(of.clone(), name.clone(), served, read_only));
        self.say(|| format!("volume {name} made of {of}"));
        let made = match &self.actors.serving {
            Some(serving) => serving.volumes.clone_volume(&of, &name, read_only),
            None => self.admin()?.clone_volume(&of, &name, read_only, self.now),
        };
        match made {
            Ok(()) => {
                self.unsure = None;
                self.cloned(&of, name, served, read_only);
                Ok(())
            }
            Err(error) => {
                let ended = self.refused("clone volume", &error);
                if ended.is_ok() {
                    self.unsure = None;
                    // What was written back, or lost, before the refusal is not known.
                    return if served { self.look_at_all() } else { Ok(()) };
                }
                ended
            }
        }
    }

    /// A volume that is read-only takes no change.
    fn denied(&mut self, what: &str, done: Result<(), Error>) -> Flow {
        match done {
            Err(error) if error.kind() == Kind::Denied => {
                self.reach.hit("a change of a read-only volume was refused");
                Ok(())
            }
            Err(error) => Err(self.judge(what, &error)),
            Ok(()) => {
                let message = format!("{what}: a read-only volume was changed");
                Err(Failure::new(Checker::Volumes, message).into())
            }
        }
    }

    /// There is a clone.
    pub(crate) fn cloned(&mut self, of: &str, name: String, served: bool, read_only: bool) {
        self.reach.hit("a volume was cloned");
        if served && let Some(disk) = self.disks.get_mut(of) {
            disk.make_durable();
        }
        if let Some(disk) = self.disks.get(of).cloned() {
            self.disks.insert(name, Disk { read_only, ..disk });
        }
    }

    /// After a crash: the volumes are those of the model, with what they may hold.
    pub(crate) fn look_at_volumes(&mut self, archive: &Arc<Archive>) -> Flow {
        let tables = archive.tables();
        let there = tables.volumes.all().values().filter(|one| !Sim::is_gone(&tables, one.domain));
        let mut found: Vec<&str> = there.map(|volume| &volume.name[..]).collect();
        found.sort_unstable();
        let expected: Vec<&str> = self.disks.keys().map(|name| &name[..]).collect();
        if found != expected {
            return Err(Failure::new(
                Checker::Volumes,
                format!("volumes {found:?} instead of {expected:?}"),
            )
            .into());
        }
        self.look_at_domains_of_volumes(archive)?;
        if self.disks.is_empty() || self.actors.serving.is_some() || self.actors.putting.is_some() {
            return Ok(());
        }
        let ingest = Ingest::begin(archive, false, true).map_err(|e| self.judge("serve", &e))?;
        self.serve_on(archive.clone(), ingest)?;
        if let Some(serving) = self.actors.serving.take() {
            self.look_at_erased_volumes(&serving.exports)?;
        }
        Ok(())
    }

    /// A client's hold on a volume, where it is served.
    pub(crate) fn hold_volume(&mut self, names: &[String]) -> Option<Arc<dyn Volume>> {
        let serving = self.actors.serving.as_ref()?;
        names.first().and_then(|name| serving.exports.open(name).ok())
    }

    /// The domain of a volume was erased by another process while its client held it: nothing of it is read,
    /// written or flushed any more from when the server knows.
    pub(crate) fn look_at_held(&mut self, held: Option<Arc<dyn Volume>>) -> Flow {
        let (Some(held), Some(serving)) = (held, &mut self.actors.serving) else { return Ok(()) };
        // What waits of it is dropped with it.
        serving.trimmed.clear();
        // What is dirty of it is dropped, also where a write-back begins before the server knows.
        if self.now.is_multiple_of(2) {
            serving.archive.refresh().map_err(|error| self.judge("refresh", &error))?;
        } else {
            let tended = serving.volumes.tend(self.now);
            tended.or_else(|error| self.refused("tend", &error))?;
        }
        let done = [
            read(&*held, 0, BLOCK).map(drop),
            held.write(0, &[7; 512]).map(drop),
            held.trim(0, BLOCK as u64).map(drop),
            held.extents(0, BLOCK as u64, 1).map(drop),
            held.flush(),
        ];
        if self.files.is_down() {
            return Err(Stop::Down);
        }
        for done in done {
            match done {
                Err(error) if error.kind() == Kind::Denied => {}
                Err(error) => return Err(self.judge("held", &error)),
                Ok(()) => {
                    let message = "a volume of an erased domain is used by who held it";
                    return Err(Failure::new(Checker::Secrecy, message).into());
                }
            }
        }
        self.reach.hit("who held a volume of an erased domain was refused");
        Ok(())
    }
}
