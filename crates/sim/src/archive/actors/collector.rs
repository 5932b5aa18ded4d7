//! Collections, a step at a time, and settling all in the end.

use onefold_archive::{Collection, CollectionOptions as Options, CountsFound};
use onefold_core::Kind;

use crate::{
    archive::run::{Flow, Sim},
    checker::{Checker, Failure},
};

impl Sim {
    pub(crate) fn collect_move(&mut self) -> Flow {
        let (archive, mut collection) = match self.actors.collection.take() {
            Some(running) => running,
            None => {
                let archive = self.open(true)?;
                let options = Options {
                    now: self.now,
                    keep_partial: self.params.keep_partial,
                    trash: self.params.trash,
                    wait: false,
                    reserve_bytes: 256 << 10,
                    encode_all: self.params.late.is_some() && self.rng.percent(20),
                    doubts_clock: false,
                };
                match Collection::begin(&archive, options) {
                    Ok(mut collection) => {
                        self.actors.recounts =
                            self.params.seed.is_multiple_of(4) && self.recounts_rng.percent(15);
                        if self.actors.recounts {
                            collection.recount();
                        }
                        self.collects_older(&mut collection);
                        (archive, Box::new(collection))
                    }
                    Err(error) => return Err(self.judge("gc", &error)),
                }
            }
        };
        if self.rng.percent(3) {
            self.reach.hit("a collector killed");
            return Ok(());
        }
        let before = collection.done.encoded;
        collection.tick(self.now);
        let stepped = collection.step();
        if collection.done.encoded > before {
            self.reach.hit("containers settled");
        }
        if let Some(recounted) = collection.recounted.take() {
            self.reach.hit("all references were counted anew");
            self.look_at_counts(&recounted)?;
        }
        match stepped {
            Ok(true) => {
                self.actors.collection = Some((archive, collection));
                Ok(())
            }
            Ok(false) => {
                self.say(|| format!("collected: {:?}", collection.done));
                for (what, n) in [
                    ("containers dropped", collection.done.dropped),
                    ("containers merged", collection.done.merged),
                    ("a damaged container stayed", collection.done.damaged),
                    ("places held back by readers", collection.done.held_back),
                    ("collection waits for older puts", u64::from(collection.done.waits)),
                ] {
                    if n > 0 {
                        self.reach.hit(what);
                    }
                }
                self.look_at_resealed(&collection)
            }
            // Counts are written anew beside those that are there, and nothing is freed before that. A
            // full disk has no room for it, and loses nothing.
            Err(error) if self.actors.recounts && error.kind() == Kind::NoSpace => Ok(()),
            Err(error) => Err(self.judge("gc", &error)),
        }
    }

    /// The counts, as changes made them, are those that the roots give.
    pub(crate) fn look_at_counts(&self, found: &CountsFound) -> Flow {
        if self.damaged || (found.too_low.chunks, found.too_high.chunks) == (0, 0) {
            return Ok(());
        }
        Err(Failure::new(Checker::ReferenceCounts, format!("{found:?}")).into())
    }

    /// The last segments of each owner and class stay. A put writes recipes and copies; where it
    /// gathers chunks, and encodes them at once, it writes into the three classes, too.
    pub(crate) fn segments_left(&self) -> usize {
        match self.params.late {
            None => 2,
            Some(rad) if rad.gathers > 0 => 10,
            Some(_) => 7,
        }
    }

    /// When nothing fails, all that stands replicated can be encoded, and is what it was.
    pub(crate) fn encode_all(&mut self) -> Flow {
        if self.params.late.is_none() {
            return Ok(());
        }
        for _ in 0..2 {
            let archive = self.open(true)?;
            let options = Options {
                now: self.now,
                keep_partial: 0,
                trash: self.params.trash,
                wait: false,
                reserve_bytes: 256 << 10,
                encode_all: true,
                doubts_clock: false,
            };
            let collected = Collection::begin(&archive, options)
                .and_then(|collection| collection.run(&mut |_| {}));
            collected.map_err(|e| self.judge("gc", &e))?;
        }
        let left = self.open(true)?.tables().sums().replicated();
        if left.1 > 0 {
            return Err(Failure::new(
                Checker::Progress,
                format!("{} containers stand replicated for ever", left.1),
            )
            .into());
        }
        self.look()
    }
}
