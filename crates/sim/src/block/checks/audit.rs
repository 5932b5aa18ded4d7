//! Two judgements at the end of a run: a second reading of the disk by the format's document, and
//! the cost of damage.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{BLOCK_BYTES, Block, BlockRead, Class, Disk, Error, Lba, VolumeId, VolumeInfo};
use onefold_testbed::{VirtualClock, VirtualDisk};

use crate::{
    block::{
        checks::verifier::{self, Held, Reading},
        model::{Key, Model},
        run::Sim,
        subject::Subject,
    },
    checker::{Checker, Failure},
};

impl<S: Subject> Sim<S> {
    /// Reads a store that was closed without the engine, and compares it with itself, and with the
    /// model when `model` is there.
    pub(crate) fn read_again(
        &mut self,
        disk: &Arc<VirtualDisk>,
        model: Option<&Model>,
    ) -> Result<Reading, Failure> {
        let Some(reading) = S::read_again(disk, &self.params.options) else {
            return Ok(Reading::default());
        };
        if let Some(problem) = reading.problems.first() {
            let more = reading.problems.len() - 1;
            return Err(Failure::new(
                Checker::SecondReading,
                format!("{problem} (and {more} more)"),
            ));
        }
        if !reading.clean && disk.damaged().is_empty() {
            return Err(Failure::new(
                Checker::SecondReading,
                "a store that was closed is not marked so",
            ));
        }
        self.reach.hit("verifier: second reading");
        if let Some(model) = model {
            agrees(&reading, model)?;
        }
        Ok(reading)
    }
}

impl<S: Subject> Sim<S> {
    /// Judges the cost of damage, on a copy of the disk that gets no more faults: every block that
    /// damage did not hit must be there.
    pub(crate) fn audit(&mut self) -> Result<(), Failure> {
        self.let_go();
        let clock = Arc::new(VirtualClock::default());
        let disk = Arc::new(self.disk.copy(Arc::clone(&clock)));
        let mut model = self.model.clone();
        model.damage = disk.damage();
        model.restart();
        self.reach.hit("audit: after damage");
        let store = match S::open(Arc::clone(&disk) as Arc<dyn Disk>, clock, &self.params.options) {
            Ok(store) => store,
            Err(error) => return self.refusal(&disk, &error),
        };
        let listed = store
            .volumes()
            .map_err(|error| spreads(format!("the volumes can't be listed: {error:?}")))?;
        if model.resolve(&listed).is_err() {
            self.reach.hit("damage: catalogue");
            return Ok(());
        }
        let unreadable = self.read_all(&store, &disk, &model)?;
        disk.forget_reads();
        match store.close() {
            Ok(()) => {}
            Err(_) if disk.met_damage() => {
                self.reach.hit("damage: close refused");
                return Ok(());
            }
            Err(error) => {
                return Err(spreads(format!("no damage was met, and yet: close: {error:?}")));
            }
        }
        disk.next_session();
        let reading = self.read_again(&disk, Some(&model))?;
        self.none_needless(&reading, &model, &unreadable)
    }

    /// A store that can't be opened: only what there is no second copy of explains it.
    fn refusal(&mut self, disk: &VirtualDisk, error: &Error) -> Result<(), Failure> {
        let met = disk.met_in_session();
        let options = &self.params.options;
        let alone = |&at: &u64| match disk.class_of(at) {
            // A block of a window that is not known to be durable: whether it was written can't be
            // told from one that can't be read.
            Some(Class::Data) => disk.unreadable().contains(&at),
            // A superblock, or a page of the zone list, is there twice, but for the moment in which
            // the other one is written.
            _ => !S::has_copy(disk, options, at),
        };
        if met.iter().any(alone) {
            self.reach.hit("damage: store refused");
            return Ok(());
        }
        let classes: Vec<_> = met.iter().map(|&at| (at, disk.class_of(at))).collect();
        Err(spreads(format!(
            "the store can't be opened, and nothing explains it: {error:?}; damage that was met: {classes:?}"
        )))
    }

    /// Reads each block by itself; gives those that can't be read.
    fn read_all(
        &mut self,
        store: &S,
        disk: &VirtualDisk,
        model: &Model,
    ) -> Result<BTreeSet<(Key, u64)>, Failure> {
        let mut unreadable = BTreeSet::new();
        for (&key, volume) in model.volumes() {
            for lba in model.touched(key) {
                let mut block = Block::zeroed_vec(1);
                let mut reads = [BlockRead { first: Lba(lba), into: &mut block, result: Ok(()) }];
                disk.forget_reads();
                store.read(volume.id, &mut reads);
                let [read] = reads;
                match read.result {
                    Ok(()) => model.check_now(key, lba, &block[0].0)?,
                    Err(_) if model.may_be_lost(key, lba) => {}
                    Err(_) if disk.met_damage() => {
                        unreadable.insert((key, lba));
                    }
                    Err(error) => {
                        return Err(spreads(format!(
                            "block {lba} of volume '{}': {error:?}",
                            volume.name
                        )));
                    }
                }
            }
        }
        Ok(unreadable)
    }

    /// The store must have been able to read every block that the second reading finds whole.
    fn none_needless(
        &mut self,
        reading: &Reading,
        model: &Model,
        unreadable: &BTreeSet<(Key, u64)>,
    ) -> Result<(), Failure> {
        let Some(volumes) = &reading.volumes else { return Ok(()) };
        for &(key, lba) in unreadable {
            let known = model.volumes().get(&key);
            let found = known.and_then(|known| {
                volumes.iter().find(|volume| VolumeId(volume.number) == known.id)
            });
            if found.is_some_and(|volume| volume.held(lba) != Held::Dark) {
                return Err(spreads(format!(
                    "block {lba} of volume {key} is whole on the disk, and can't be read"
                )));
            }
        }
        self.reach.hit("audit: only what was hit is lost");
        Ok(())
    }
}

fn spreads(message: String) -> Failure {
    Failure::new(Checker::DamageSpreads, message)
}

/// The volumes are those of the model, and hold what they must.
fn agrees(reading: &Reading, model: &Model) -> Result<(), Failure> {
    let Some(volumes) = &reading.volumes else { return Ok(()) };
    let mut model = model.clone();
    let id = VolumeId;
    let info = |volume: &verifier::Volume| VolumeInfo {
        name: volume.name.clone(),
        size: volume.blocks * BLOCK_BYTES as u64,
    };
    let listing: Vec<_> = volumes.iter().map(|volume| (id(volume.number), info(volume))).collect();
    model.resolve(&listing)?;
    for (&key, known) in model.volumes() {
        let Some(found) = volumes.iter().find(|volume| id(volume.number) == known.id) else {
            continue;
        };
        for lba in model.touched(key).into_iter().chain(found.mapped()) {
            match found.held(lba) {
                Held::Dark => {}
                Held::Zeroes => model.check_now(key, lba, &[0; BLOCK_BYTES])?,
                Held::Data(bytes) => model.check_now(key, lba, &bytes)?,
                Held::Lost => model.check_lost(key, lba)?,
            }
        }
    }
    Ok(())
}
