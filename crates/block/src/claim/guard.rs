//! The disk of a store whose claim is held.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use onefold_core::{Block, BlockRef, Class, Clock, Disk, Error, Kind, Pba, Read, Result, Run};
use parking_lot::Mutex;

use super::{Action, Event, Holder, Loss, Place, Taker, Times, hold::fresh};
use crate::format::claim::{CLAIM_AT, Claim, Claimant, State};

/// Looks and renewals in a row that may each take too long.
const TRIES: u32 = 3;

/// The functions that a guard needs from outside.
pub struct Outside {
    /// Time that goes on while the machine sleeps.
    pub clock: Arc<dyn Clock>,
    /// Random bytes; machines that resume from one memory image must not get the same.
    pub token: Box<dyn Fn() -> Result<[u8; 16]> + Send + Sync>,
    /// Lets time pass.
    pub sleep: Box<dyn Fn(Duration) + Send + Sync>,
}

/// A disk that refuses all work once its claim is lost.
///
/// Its owner calls [`renew`](Guard::renew) every [`Times::renew`]; without that each request after
/// [`Times::unseeing`] looks for itself.
pub struct Guard {
    disk: Arc<dyn Disk>,
    outside: Outside,
    times: Times,
    /// When the claim was last found, in nanoseconds: a copy of the holder's time that is read
    /// without its lock.
    looked: AtomicU64,
    lost: OnceLock<Error>,
    place: Place,
    holder: Mutex<Holder>,
}

impl Guard {
    /// Takes the claim of the store `store` on `disk`; its caller has won the locks. `told` hears
    /// once when that takes longer, and of whom.
    ///
    /// # Errors
    /// `Busy` with host and process when somebody else works on the store; those of the disk.
    pub fn take(
        disk: Arc<dyn Disk>,
        store: [u8; 16],
        claimant: Claimant,
        place: Place,
        times: Times,
        outside: Outside,
        told: &mut dyn FnMut(Duration),
    ) -> Result<Guard> {
        let mut taker = Taker::new(store, claimant, (outside.token)()?, place);
        let now = || outside.clock.now();
        let mut action = taker.step(&times, now(), Event::Awake);
        let mut waited = false;
        let looked = loop {
            action = match action {
                Action::Look => {
                    let asked = now();
                    let block = read(&*disk)?;
                    taker.step(&times, now(), Event::Seen { asked, block: &block })
                }
                Action::Write(block) => {
                    write(&*disk, &block)?;
                    taker.step(&times, now(), Event::Written)
                }
                Action::Wait(time) => {
                    if !std::mem::replace(&mut waited, true) {
                        told(if time == times.settle { time } else { times.watch + times.confirm });
                    }
                    (outside.sleep)(time);
                    taker.step(&times, now(), Event::Awake)
                }
                Action::Won { looked } => break looked,
                Action::Busy(claim) => return Err(busy(claim.as_ref())),
                Action::Slow => {
                    return Err(Error::new(
                        Kind::Busy,
                        "the medium is too slow to claim the store safely; try again later",
                    ));
                }
            };
        };
        let holder = Mutex::new(Holder::new(taker.claim().clone(), looked, place));
        let looked = AtomicU64::new(nanos(looked));
        Ok(Guard { disk, outside, times, looked, lost: OnceLock::new(), place, holder })
    }

    /// Finds the claim, and writes new bytes.
    ///
    /// # Errors
    /// `Stopped` when it is lost, for good; `Io` when the medium can't be read now.
    pub fn renew(&self) -> Result<()> {
        self.rewrite(State::Held)
    }

    /// Gives the claim up; nothing may be asked of the disk afterwards.
    ///
    /// # Errors
    /// As [`renew`](Self::renew).
    pub fn release(&self) -> Result<()> {
        self.rewrite(State::Free)?;
        self.disk.flush()?;
        let _ = self.lost.set(Error::new(Kind::Stopped, "the claim on the store was given up"));
        Ok(())
    }

    fn rewrite(&self, state: State) -> Result<()> {
        let mut holder = self.holder.lock();
        // After a slow write others may soon count the bytes as stale, so it is followed by another.
        for _ in 0..TRIES {
            self.look(&mut holder)?;
            let block = holder.renewal((self.outside.token)()?, state);
            // Nobody knows which bytes are there after a write that failed.
            write(&*self.disk, &block).map_err(|e| self.stop(e))?;
            let wrote = holder.wrote(&self.times, self.outside.clock.now());
            wrote.map_err(|loss| self.lose(&loss))?;
            if self.sees() {
                break;
            }
        }
        Ok(())
    }

    /// Called before anything is submitted or acknowledged; the guard's own disk does so itself.
    ///
    /// # Errors
    /// `Stopped` when the claim is lost, for good; `Io` when the medium can't be read now.
    pub fn check(&self) -> Result<()> {
        match self.lost.get() {
            Some(error) => Err(error.clone()),
            None if self.sees() => Ok(()),
            None => self.look_again(),
        }
    }

    fn sees(&self) -> bool {
        fresh(
            &self.times,
            Duration::from_nanos(self.looked.load(Ordering::Acquire)),
            self.outside.clock.now(),
        )
    }

    fn look_again(&self) -> Result<()> {
        let mut holder = self.holder.lock();
        // A renewal may have looked, or have been found too late, while this waited.
        if self.lost.get().is_none() && self.sees() {
            return Ok(());
        }
        self.look(&mut holder)
    }

    fn look(&self, holder: &mut Holder) -> Result<()> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        // A look that took long says nothing of now: the machine slept meanwhile, or the medium is
        // slow.
        for _ in 0..TRIES {
            let asked = self.outside.clock.now();
            let block = read(&*self.disk)?;
            holder.seen(asked, &block).map_err(|loss| self.lose(&loss))?;
            self.looked.store(nanos(holder.looked()), Ordering::Release);
            if self.sees() || self.place == Place::LocalFile {
                return Ok(());
            }
        }
        Err(Error::new(Kind::Io, "the medium takes too long to show who works on the store"))
    }

    fn lose(&self, loss: &Loss) -> Error {
        self.stop(Error::new(
            Kind::Stopped,
            match loss {
                Loss::Taken(Some(claim)) if claim.state != State::Free => format!("the store was taken over by {}", who(claim)),
                Loss::Taken(_) => "the claim on the store was overwritten by another program".to_owned(),
                Loss::Late => "the medium took so long to renew the claim on the store, or this process slept meanwhile, that another machine may have taken it over".to_owned(),
            },
        ))
    }

    fn stop(&self, error: Error) -> Error {
        self.lost.get_or_init(|| error).clone()
    }
}

impl Disk for Guard {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        match self.check() {
            Ok(()) => self.disk.read(reads),
            Err(error) => reads.iter_mut().for_each(|read| read.result = Err(error.clone())),
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        if runs.iter().any(is_superblock) {
            self.look(&mut self.holder.lock())
        } else {
            self.check()
        }?;
        self.disk.write(runs)
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        if is_superblock(run) { self.look(&mut self.holder.lock()) } else { self.check() }?;
        self.disk.write_durable(run)?;
        self.check()
    }

    fn flush(&self) -> Result<()> {
        self.check()?;
        self.disk.flush()?;
        self.check()
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.check()?;
        self.disk.allocate(at, blocks)
    }

    fn extend(&self, from: Pba, blocks: Option<u64>, reserve: bool) -> Result<u64> {
        self.check()?;
        self.disk.extend(from, blocks, reserve)
    }
}

/// Zeroes blocks 0 to 15 of a medium that is to hold a store: no superblock and no claim of another
/// store shines through.
///
/// # Errors
/// `Io`: the disk failed.
pub fn clear(disk: &dyn Disk) -> Result<()> {
    let block = Block::zeroed();
    let blocks = [BlockRef { block: &block, class: Class::Super }; 16];
    disk.write(&[Run { at: Pba(0), blocks: &blocks }])?;
    disk.flush()
}

/// The claim that is on a medium, of whatever store.
///
/// # Errors
/// `Io`: the disk failed.
pub fn found(disk: &dyn Disk) -> Result<Option<Claim>> {
    read(disk).map(|block| Claim::decode(&block))
}

fn is_superblock(run: &Run<'_>) -> bool {
    run.blocks.iter().any(|block| block.class == Class::Super)
}

/// The block of the claim as it is on the medium.
fn read(disk: &dyn Disk) -> Result<Box<Block>> {
    let mut block = Block::zeroed();
    let mut reads = [Read::new(CLAIM_AT, std::slice::from_mut(&mut *block))];
    disk.read(&mut reads);
    let [Read { result, .. }] = reads;
    result.map(|()| block)
}

/// Writes the claim. Others see it without a flush, which makes nothing clearer to anybody but this
/// machine after a power failure.
fn write(disk: &dyn Disk, block: &Block) -> Result<()> {
    disk.write(&[Run { at: CLAIM_AT, blocks: &[BlockRef { block, class: Class::Super }] }])
}

fn busy(claim: Option<&Claim>) -> Error {
    let who = claim.map_or_else(|| "another program".to_owned(), who);
    Error::new(Kind::Busy, format!("the store is in use by {who}"))
}

fn who(claim: &Claim) -> String {
    let Claimant { host, pid, .. } = &claim.claimant;
    format!("process {pid} on host {}", if host.is_empty() { "without a name" } else { host })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
