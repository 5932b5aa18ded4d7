//! `onefold cluster worker`, and workers inside a server.

use onefold::parts::cluster_store::{Backing, Opened};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_backend::signals::StopSignals;
use onefold_cluster::Worker;
use onefold_core::{Error, Kind};
use serde_json::json;

use super::options::{Pace, WorkerOptions};
use onefold_console::failure::Failure;

/// Deduplicates, until a signal comes or until nothing is left.
pub(super) fn work(options: &WorkerOptions) -> Result<(), Failure> {
    if !options.once {
        let mut signals = StopSignals::install()?;
        let backing = Backing::open(&options.store, options.pace.timeout())?;
        let workers = Workers::start(&backing, options.threads, &options.pace)?;
        tracing::info!("deduplicating {}", options.store);
        signals.wait();
        workers.stop();
        return Ok(());
    }
    let opened = Opened::with(&options.store, options.pace.settings(), options.pace.timeout())?;
    let mut worker = Worker::new(opened.session.clone(), options.pace.marks());
    let flipped = until_done(&mut worker);
    // Also after an error: others need not wait until its leases end.
    worker.release();
    let flipped = flipped?;
    options.answer.tell(
        &json!({ "deduplicated_chunks": flipped }),
        format_args!("deduplicated {flipped} chunks"),
    )
}

/// Works until nothing is left; how many chunks it deduplicated.
fn until_done(worker: &mut Worker) -> Result<u64, Error> {
    let mut flipped = 0;
    loop {
        let deleted = worker.session().delete_step()?;
        let progress = worker.step()?;
        flipped += progress.flipped;
        if progress.round && !deleted && worker.session().backlog()? == 0 {
            return Ok(flipped);
        }
        if progress.later > 0 || progress.waits || progress.flipped == 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Workers inside a process that owns the store.
pub(crate) struct Workers {
    threads: Vec<std::thread::JoinHandle<()>>,
    stop: Vec<std::sync::mpsc::Sender<()>>,
}

impl Workers {
    /// Starts `count` of them, each with a session of its own.
    ///
    /// # Errors
    /// The store's and the system's.
    pub(crate) fn start(backing: &Backing, count: usize, pace: &Pace) -> Result<Workers, Error> {
        let mut workers = Workers { threads: Vec::new(), stop: Vec::new() };
        for n in 0..count {
            let session = Arc::new(backing.session(pace.settings())?);
            let worker = Worker::new(session, pace.marks());
            let (stop, stopped) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("worker {n}"))
                .spawn(move || labour(worker, &stopped));
            workers
                .threads
                .push(thread.map_err(|e| Error::from_io("cannot start a thread for a worker", e))?);
            workers.stop.push(stop);
        }
        Ok(workers)
    }

    /// Ends them after the step that each is at.
    pub(crate) fn stop(mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            // Its panic, if any, was printed.
            let _ = thread.join();
        }
    }
}

/// How long a worker waits when it may not do anything.
const IDLE: Duration = Duration::from_millis(200);

/// How long it waits at most when there is nothing to do: each look is a read of every shard.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// How often a worker looks at the load.
const LOOK: Duration = Duration::from_secs(1);

/// The life of a worker's thread; it ends when the other side of `stopped` is gone.
fn labour(mut worker: Worker, stopped: &std::sync::mpsc::Receiver<()>) {
    use std::sync::mpsc::RecvTimeoutError::Timeout;
    let begun = Instant::now();
    let (mut looked, mut allowed, mut flipped) = (None::<Duration>, u64::MAX, 0);
    let (mut pause, mut idle) = (Duration::ZERO, IDLE);
    while stopped.recv_timeout(pause).is_err_and(|error| error == Timeout) {
        let now = begun.elapsed();
        let mut step = || -> Result<Duration, Error> {
            if looked.is_none_or(|looked| now >= looked + LOOK) {
                looked = Some(now);
                // The next one says more.
                let _ = worker.session().publish(true);
                allowed = worker.allowance(now)?;
            }
            if allowed == 0 {
                return Ok(IDLE);
            }
            let progress = worker.step()?;
            if progress.waits {
                return Ok(IDLE);
            }
            allowed = if allowed == u64::MAX {
                allowed
            } else {
                allowed.saturating_sub(progress.operations)
            };
            flipped += progress.flipped;
            if !progress.round {
                return Ok(Duration::ZERO);
            }
            let busy = worker.session().delete_step()? || flipped > 0;
            flipped = 0;
            idle = if busy { IDLE } else { (idle * 2).min(IDLE_MAX) };
            Ok(if busy { Duration::ZERO } else { idle })
        };
        pause = match step() {
            Ok(pause) => pause,
            Err(error) if error.kind() == Kind::Stopped => return,
            Err(error) => {
                tracing::warn!("{error}");
                LOOK
            }
        };
    }
    worker.release();
    let _ = worker.session().unpublish();
}
