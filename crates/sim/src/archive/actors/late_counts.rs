//! Two collectors die with the frames of their counts on the way, and the medium shows the first frame
//! after the second one's death.

use onefold_archive::{Collection, CollectionOptions as Options};

use crate::archive::run::{Flow, Sim, Stop};

/// The first one counts a change, the second one all of them: an operator chose so, or another version
/// does.
pub(super) const FEW: usize = 1;
pub(super) const ALL: usize = 64 << 10;

impl Sim {
    /// Between two lives. Nothing that a client sees changes.
    pub(crate) fn late_counts(&mut self) -> Flow {
        if !self.params.late_counts {
            return Ok(());
        }
        let first = self.dies_counting(FEW, true)?;
        let second = first && self.dies_counting(ALL, false)?;
        if self.files.show_late_write() && second {
            self.reach.hit("a lost frame of counts came back");
        }
        if first { self.look() } else { Ok(()) }
    }

    /// A collector that dies when it writes the frame of its counts; false when there is nothing to count.
    pub(super) fn dies_counting(&mut self, portion: usize, is_shown: bool) -> Result<bool, Stop> {
        self.portion = Some(portion);
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
        let mut collection =
            Collection::begin(&archive, options).map_err(|error| self.judge("gc", &error))?;
        loop {
            let counts = collection.doing() == "counting references";
            if counts {
                self.files.arm_late_write("log-", is_shown);
            }
            let stepped = collection.step();
            self.files.disarm_late_write();
            match stepped {
                Ok(true) if !counts => {}
                Ok(_) => return Ok(false),
                Err(_) if self.files.is_down() => break,
                Err(error) => return Err(self.judge("gc", &error)),
            }
        }
        drop((collection, archive));
        self.files.kill();
        Ok(true)
    }
}
