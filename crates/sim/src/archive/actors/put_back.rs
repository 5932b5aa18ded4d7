//! Whoever holds the files of a sealed archive takes some that processes wrote before they died, and puts
//! them back when the next ones have written others with the same numbers. Their tags are good. Nobody
//! may take them for those that the log and the snapshot name.

use std::sync::Arc;

use onefold_archive::{
    Archive, Collection, CollectionOptions as Options, FoundLabel, Label, check,
};
use onefold_core::{Files, Kind, Result};
use onefold_testbed::Rng;

use super::late_counts::{ALL, FEW};
use crate::{
    archive::run::{Flow, Sim, Stop},
    checker::{Checker, Failure},
};

const MAPS: &str = "maps";

/// The file that says how far the log is durable.
const SYNCED: &str = "vouched";

/// Bytes of both copies of a page of the maps.
const PAGE: usize = 8192;

/// Bytes of one of the two places of a label.
const PLACE: usize = 4096;

/// Bytes of a frame's header, and the number by which it begins.
const HEADER: usize = 40;
const MAGIC: [u8; 4] = 0x4c46_4e4f_u32.to_le_bytes();

/// Where the frames of a log begin.
fn headers(log: &[u8]) -> Vec<usize> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(header) = log.get(at..at + 8).filter(|header| header[..4] == MAGIC) {
        all.push(at);
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        at += (HEADER + length).next_multiple_of(64);
    }
    all
}

/// What was taken.
pub(crate) struct Taken {
    rng: Rng,
    /// The file of the volumes' maps as a crash left it.
    maps: Vec<u8>,
}

impl Taken {
    pub(crate) fn new(seed: u64) -> Taken {
        let rng = Rng::new(seed ^ 0x7461_6b65_6e5f_6f66);
        Taken { rng, maps: Vec::new() }
    }
}

impl Sim {
    fn bytes_of(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.files.open(name)?;
        let mut bytes = vec![0; file.bytes()? as usize];
        let n = file.read_at(0, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn write_all(&mut self, name: &str, bytes: &[u8]) -> Flow {
        let written = self.files.open(name).and_then(|file| {
            file.set_bytes(bytes.len() as u64)?;
            file.write_at(0, bytes)?;
            file.sync()
        });
        written.map_err(|error| self.judge("put back", &error))
    }

    /// In some lives the first checkpoint is cut off right before its label.
    pub(crate) fn die_at_checkpoint(&mut self) {
        if let Some(taken) = &mut self.taken
            && taken.rng.percent(50)
        {
            self.files.arm_late_write("label", false);
        }
    }

    /// A life has ended: the maps are copied before anybody opens the archive.
    pub(crate) fn take_maps(&mut self) {
        let Ok(bytes) = self.bytes_of(MAPS) else { return };
        if let Some(taken) = &mut self.taken {
            taken.maps = bytes;
        }
    }

    /// Between two lives.
    pub(crate) fn put_back(&mut self) -> Flow {
        if self.taken.is_none() || self.damaged || self.refused || self.files.is_hurt() {
            return Ok(());
        }
        self.put_maps_back()?;
        self.put_rubbish()?;
        if !self.params.collects || self.upgraded.kinds.trees {
            return Ok(());
        }
        self.put_counts_back()
    }

    /// A collector counts one change and dies before the frame of its counts. The file that it leaves is taken
    /// away; the next collector counts all, in a file of the same number, and the other one comes in its place.
    fn put_counts_back(&mut self) -> Flow {
        if !self.dies_counting(FEW, false)? {
            return Ok(());
        }
        let before = self.open(false)?.tables().counts;
        let name = format!("counts-{:010}", before + 1);
        let Ok(bytes) = self.bytes_of(&name) else { return Ok(()) };
        let removed = self.files.remove(&name).and_then(|()| self.files.sync_names());
        removed.map_err(|error| self.judge("counts", &error))?;
        self.count_all(before)?;
        let good = match self.bytes_of(&name) {
            Ok(good) if good != bytes => good,
            _ => return Ok(()),
        };
        self.write_all(&name, &bytes)?;
        let archive = self.open(false)?;
        if archive.tables().counts != before + 1 {
            return self.write_all(&name, &good);
        }
        let report = check(&archive, false, &mut |_, _, _| {});
        let report = report.map_err(|error| self.judge("check", &error))?;
        if report.counts.is_some() {
            return Err(Sim::breach("usage counts that no frame names were taken"));
        }
        if report.is_well() {
            return Err(Sim::breach("nobody was told of other usage counts"));
        }
        self.reach.hit("other usage counts were refused");
        drop(archive);
        self.write_all(&name, &good)
    }

    /// The number of the log that the label names.
    fn log_of_label(&self) -> Option<u64> {
        let bytes = self.bytes_of("label").ok()?;
        let labels = bytes.chunks(PLACE).filter_map(|place| match Label::decode(place) {
            FoundLabel::Good(label) => Some(label),
            _ => None,
        });
        labels.max_by_key(|label| label.generation).map(|label| label.snapshot)
    }

    /// The log becomes rubbish, all of it or each frame a little, and nothing says any more how far it was
    /// durable. That is no archive in an older state.
    fn put_rubbish(&mut self) -> Flow {
        let Some(taken) = &mut self.taken else { return Ok(()) };
        let (is_noise, seed) = (taken.rng.percent(50), taken.rng.next());
        let Some(number) = self.log_of_label() else { return Ok(()) };
        let [log, next] = [number, number + 1].map(|number| format!("log-{number:010}"));
        // Where the label was lost, the next log counts.
        if self.bytes_of(&next).is_ok_and(|next| !headers(&next).is_empty()) {
            return Ok(());
        }
        let (Ok(good), Ok(synced)) = (self.bytes_of(&log), self.bytes_of(SYNCED)) else {
            return Ok(());
        };
        let mut bad = good.clone();
        let frames = headers(&good);
        match is_noise {
            true if !frames.is_empty() => Rng::new(seed).fill(&mut bad),
            // Of one frame a crash may have left so much.
            false if frames.len() > 1 => frames.iter().for_each(|at| bad[at + HEADER] ^= 1),
            _ => return Ok(()),
        }
        self.write_all(&log, &bad)?;
        self.write_all(SYNCED, &[])?;
        let opened = [false, true].map(|writes| {
            Archive::open(Arc::new(self.files.clone()), writes, self.settings())
                .map(|archive| archive.tables().sequence)
        });
        self.write_all(&log, &good)?;
        self.write_all(SYNCED, &synced)?;
        for opened in opened {
            match opened {
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.reach.hit("a log of rubbish was refused");
                }
                Err(error) => return Err(self.judge("open", &error)),
                Ok(_) => return Err(Sim::breach("a log of rubbish was taken for an empty one")),
            }
        }
        Ok(())
    }

    /// A collector runs until a frame names new counts.
    fn count_all(&mut self, before: u64) -> Flow {
        self.portion = Some(ALL);
        let opened = self.open(true);
        self.portion = None;
        let archive = opened?;
        let options = Options {
            now: self.now,
            keep_partial: self.params.keep_partial,
            trash: self.params.trash,
            wait: false,
            reserve_bytes: 256 << 10,
            encode_all: false,
            doubts_clock: false,
        };
        let begun = Collection::begin(&archive, options);
        let mut collection = begun.map_err(|error| self.judge("gc", &error))?;
        while archive.tables().counts == before {
            if !collection.step().map_err(|error| self.judge("gc", &error))? {
                break;
            }
        }
        Ok(())
    }

    /// Pages of the maps that changed since come back as they were, one after the other.
    fn put_maps_back(&mut self) -> Flow {
        let Some(taken) = &self.taken else { return Ok(()) };
        let Ok(good) = self.bytes_of(MAPS) else { return Ok(()) };
        let pages = taken.maps.chunks_exact(PAGE).zip(good.chunks_exact(PAGE)).enumerate();
        let others: Vec<(usize, Vec<u8>)> = pages
            .filter(|(_, (old, now))| old != now && old.iter().any(|&byte| byte != 0))
            .map(|(page, (old, _))| (page, old.to_vec()))
            .take(4)
            .collect();
        for (page, old) in others {
            let mut bytes = self.bytes_of(MAPS).map_err(|error| self.judge("maps", &error))?;
            if bytes.get(page * PAGE..(page + 1) * PAGE) != good.get(page * PAGE..(page + 1) * PAGE)
            {
                continue;
            }
            bytes[page * PAGE..][..PAGE].copy_from_slice(&old);
            self.write_all(MAPS, &bytes)?;
            match Archive::open(Arc::new(self.files.clone()), false, self.settings()) {
                Ok(archive) => self.look_at_maps(&Arc::new(archive))?,
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.reach.hit("other pages of maps were refused");
                }
                Err(error) => return Err(self.judge("open", &error)),
            }
            // A server may have written other pages meanwhile, and this one.
            let mut now = self.bytes_of(MAPS).map_err(|error| self.judge("maps", &error))?;
            if now.get(page * PAGE..(page + 1) * PAGE) == Some(&old) {
                now[page * PAGE..][..PAGE].copy_from_slice(&good[page * PAGE..][..PAGE]);
                self.write_all(MAPS, &now)?;
            }
        }
        Ok(())
    }

    /// What opens shows the volumes as they are. Where the snapshot names this page, the one before it took
    /// its place.
    fn look_at_maps(&mut self, reader: &Arc<Archive>) -> Flow {
        let report = check(reader, false, &mut |_, _, _| {});
        let report = report.map_err(|error| self.judge("check", &error))?;
        if report.problems.iter().any(|problem| problem.contains("lost the page")) {
            self.reach.hit("other pages of maps were refused");
        }
        let archive = self.open(true)?;
        let looked = self.look_at_volumes(&archive);
        self.actors.serving = None;
        match looked {
            Err(Stop::Down) => Ok(()),
            looked => looked,
        }
    }

    /// Whoever holds the files saw no read of a container that tells where a group ends.
    pub(crate) fn look_at_reads(&mut self) -> std::result::Result<(), Failure> {
        match self.files.take_odd_read() {
            None => Ok(()),
            Some(read) => {
                let message = format!("a read tells how long a group is: {read}");
                Err(Failure::new(Checker::Secrecy, message))
            }
        }
    }
}
