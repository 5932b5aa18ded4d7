//! Pieces of work that several threads do, whose results come in the order of the pieces.
//!
//! The work on its way is bounded. A side that ends early frees the others: who gives more work hears
//! [`stopped`], and results end.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

/// Where work is given.
pub(crate) struct Given<W, R = W> {
    order: SyncSender<Receiver<R>>,
    work: SyncSender<(W, SyncSender<R>)>,
}

/// Where threads take it.
pub(super) struct Taken<W, R>(Mutex<Receiver<(W, SyncSender<R>)>>);

/// The results in their order, up to the last one.
pub(crate) struct Results<R>(Receiver<Receiver<R>>);

/// At most `ahead` pieces were given whose results were not taken, and one more.
pub(super) fn in_order<W, R>(ahead: usize) -> (Given<W, R>, Taken<W, R>, Results<R>) {
    let (order, ordered) = sync_channel(ahead);
    let (work, taken) = sync_channel(ahead);
    (Given { order, work }, Taken(Mutex::new(taken)), Results(ordered))
}

impl<W, R> Given<W, R> {
    /// Waits while too much is on its way.
    ///
    /// # Errors
    /// [`stopped`] when nobody takes results any more.
    pub(crate) fn send(&self, work: W) -> Result<()> {
        // One result: whoever did the work goes on at once.
        let (result, promised) = sync_channel(1);
        self.order.send(promised).map_err(|_| stopped())?;
        self.work.send((work, result)).map_err(|_| stopped())
    }
}

impl<W, R> Taken<W, R> {
    /// Does work until no more is given.
    pub(super) fn all(&self, mut act: impl FnMut(W) -> R) {
        loop {
            let Ok((work, result)) = self.0.lock().recv() else { return };
            // Nobody may want it any more.
            let _ = result.send(act(work));
        }
    }
}

impl<R> Iterator for Results<R> {
    type Item = R;

    /// `None` also where a thread panicked over the piece, which its scope tells.
    fn next(&mut self) -> Option<R> {
        self.0.recv().ok()?.recv().ok()
    }
}

/// Said by a stage whose successor is gone; the successor's reason is the one to tell.
pub(crate) fn stopped() -> Error {
    Error::new(Kind::Stopped, "a later stage of the put failed")
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_work() {
        let (given, taken, results) = in_order(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                // Later pieces are done sooner.
                scope.spawn(|| {
                    taken.all(|n: u64| {
                        thread::sleep(Duration::from_micros(500 * (3 - n % 4)));
                        n
                    });
                });
            }
            scope.spawn(move || (0..100).for_each(|n| given.send(n).unwrap()));
            assert!(results.eq(0..100));
        });
    }

    #[test]
    fn what_is_on_its_way_is_bounded() {
        let (given, taken, mut results) = in_order::<usize, usize>(4);
        let sent = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| taken.all(|n| n));
            let sent = &sent;
            scope.spawn(move || {
                for n in 0..50 {
                    given.send(n).unwrap();
                    sent.store(n + 1, SeqCst);
                }
            });
            for n in 0..50 {
                thread::sleep(Duration::from_micros(200));
                assert!(sent.load(SeqCst) <= n + 4);
                assert_eq!(results.next(), Some(n));
            }
            assert_eq!(results.next(), None);
        });
    }

    #[test]
    fn a_side_that_ends_frees_the_others() {
        let (given, taken, mut results) = in_order::<u8, u8>(2);
        thread::scope(|scope| {
            scope.spawn(|| taken.all(|n| n));
            let giving = scope.spawn(move || {
                loop {
                    given.send(1)?;
                }
            });
            assert_eq!(results.next(), Some(1));
            drop(results);
            let gave: Result<()> = giving.join().unwrap();
            assert_eq!(gave.unwrap_err().kind(), Kind::Stopped);
        });
        // Nobody works any more.
        let (given, taken, mut results) = in_order::<u8, u8>(2);
        drop(taken);
        assert!(given.send(1).is_err());
        drop(given);
        assert_eq!(results.next(), None);
    }
}
