//! Pieces of work on several threads; on one there is no other thread.

use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use onefold_core::{Error, Result};
use parking_lot::Mutex;

/// Does `work` for each number below `count`, with something that each thread has for itself. The
/// first error ends it.
pub(super) fn each<W: Default>(
    threads: usize,
    count: usize,
    work: &(dyn Fn(&mut W, usize) -> Result<()> + Sync),
) -> Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None::<Error>));
    let run = || {
        let mut own = W::default();
        loop {
            let n = next.fetch_add(1, Relaxed);
            if n >= count {
                break;
            }
            if let Err(error) = work(&mut own, n) {
                failed.lock().get_or_insert(error);
                next.store(count, SeqCst);
                break;
            }
        }
    };
    if threads <= 1 || count <= 1 {
        run();
    } else {
        std::thread::scope(|scope| {
            (1..threads.min(count)).for_each(|_| drop(scope.spawn(run)));
            run();
        });
    }
    failed.into_inner().map_or(Ok(()), Err)
}
