//! The claim of this process on a store: taken before the store is opened, renewed by a thread of
//! its own, given up at the end.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use onefold_backend::{
    BootClock, CLAIM, Directory, FileDisk, Medium, Stands, claim_file, claim_is_held,
    random::random_bytes,
};
use onefold_block::{
    claim::{Guard, Outside, Place, Times},
    format::claim::{CLAIM_AT, Claim, Claimant, State},
};
use onefold_core::{BLOCK_BYTES, Block, Clock, Disk, Error, Kind, Result};

use crate::parts::operator::word;

/// A claim that is held until this is dropped.
pub struct Keeper {
    guard: Arc<Guard>,
    /// Dropped to end the thread.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Takes the claim of the store `store` on a disk that is open, and so locked, for writing. The
    /// operator's word may be that no other machine reaches the medium.
    ///
    /// # Errors
    /// `Busy` with host and process while somebody else works on the store, `Unsupported` where
    /// nobody can tell; those of the disk.
    pub fn take(disk: FileDisk, store: [u8; 16]) -> Result<Keeper> {
        let (medium, one_host) = (disk.medium(), word().one_host);
        if !medium.sees_others && !one_host {
            let message = "its file system may be shared and offers no direct I/O, so that another \
                           machine could work on the store unseen; --one-host promises that none \
                           does";
            return Err(Error::new(Kind::Unsupported, message));
        }
        let place = if medium.local_file || (one_host && !medium.sees_others) {
            Place::LocalFile
        } else {
            Place::Shared
        };
        let mut told = |time: Duration| {
            tracing::info!(
                "waiting for {} s, to see that no other machine works on the store",
                time.as_secs()
            );
        };
        let times = Times::default();
        let guard = Arc::new(Guard::take(
            Arc::new(disk),
            store,
            claimant(medium),
            place,
            times,
            outside(),
            &mut told,
        )?);
        let (end, ended) = mpsc::channel();
        let renewing = guard.clone();
        let thread = std::thread::Builder::new()
            .name("store claim".to_owned())
            .spawn(move || renew(&renewing, &ended, times.renew));
        let thread =
            thread.map_err(|e| Error::from_io("cannot start a thread for the store's claim", e))?;
        Ok(Keeper { guard, end: Some(end), thread: Some(thread) })
    }

    /// Takes the claim of a folder that holds one of the files in `beside`, by the file `claim` in
    /// it.
    ///
    /// # Errors
    /// As [`take`](Self::take), with the folder's name.
    pub fn of_folder(folder: &Path, id: [u8; 16], beside: &[&str]) -> Result<Keeper> {
        let shown = folder.display();
        let disk = claim_file(folder, word(), beside).map_err(|error| match error.kind() {
            Kind::Busy => Error::new(
                Kind::Busy,
                format!("{shown} is in use: this or another process holds its claim"),
            ),
            _ => error,
        })?;
        Keeper::take(disk, id).map_err(|error| error.context(shown))
    }

    /// Errors once the claim is lost.
    pub fn stands(&self) -> Stands {
        let guard = self.guard.clone();
        Arc::new(move || guard.check())
    }

    /// The store's disk, as long as the claim is held.
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.guard.clone()
    }
}

impl Drop for Keeper {
    /// Gives the claim up. If that fails, the next process waits a little longer.
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = self.guard.release();
    }
}

/// The claim of a folder by which somebody works there, and whether a lock shows it. Where locks can't
/// show it, as on a file system that other machines reach, a killed process has its claim too.
///
/// # Errors
/// The error of looking at it.
pub fn found(folder: &Path) -> Result<Option<(Claim, bool)>> {
    let Some(claim) = written(folder)? else { return Ok(None) };
    Ok(match claim_is_held(folder) {
        Some(false) => None,
        held => Some((claim, held.is_some())),
    })
}

/// The claim of a folder that says that somebody holds it.
fn written(folder: &Path) -> Result<Option<Claim>> {
    const MOST: u64 = 64 << 10;
    let file = Directory::open(folder, false)?.small(CLAIM, MOST)?;
    let at = CLAIM_AT.0 as usize * BLOCK_BYTES;
    let Some((bytes, _)) = file.filter(|(bytes, _)| bytes.len() >= at + BLOCK_BYTES) else {
        return Ok(None);
    };
    let mut block = Block::zeroed();
    block.0.copy_from_slice(&bytes[at..at + BLOCK_BYTES]);
    Ok(Claim::decode(&block).filter(|claim| claim.state == State::Held))
}

/// Renews the claim until the owner ends it. When the claim is lost the engine hears it from its
/// next request; a medium that can't be read now may be readable the next time.
fn renew(guard: &Guard, ended: &mpsc::Receiver<()>, every: Duration) {
    while ended.recv_timeout(every.mul_f64(share())) == Err(mpsc::RecvTimeoutError::Timeout) {
        match guard.renew() {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Stopped => {
                tracing::error!("{error}");
                return;
            }
            Err(error) => tracing::warn!("renewing the claim on the store: {error}"),
        }
    }
}

/// Between 0.8 and 1: machines that resumed from one memory image do not go on renewing at the same
/// moments.
fn share() -> f64 {
    1.0 - f64::from(token().map_or(0, |bytes| bytes[0])) / 1280.0
}

/// Random bytes that differ between machines of one memory image, whose generators may be in one
/// state: the clocks do not agree to the nanosecond.
fn token() -> Result<[u8; 16]> {
    let mut token = random_bytes::<16>()?;
    let real =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let time = real.as_nanos().rotate_left(64) ^ BootClock.now().as_nanos();
    let mixed = onefold_core::checksum::fast(1, &time.to_le_bytes()).to_le_bytes();
    token.iter_mut().zip(mixed.iter().cycle()).for_each(|(byte, mix)| *byte ^= mix);
    Ok(token)
}

fn outside() -> Outside {
    Outside {
        clock: Arc::new(BootClock),
        token: Box::new(token),
        sleep: Box::new(std::thread::sleep),
    }
}

fn claimant(medium: Medium) -> Claimant {
    let Medium { host, machine, boot, device, inode, .. } = medium;
    Claimant { host, machine, boot, pid: std::process::id(), device, inode }
}
