//! `onefold worker`, and workers inside a server of the cluster engine.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use clap::Args;
use onefold::parts::cluster_store::{Backing, Opened};
use onefold_backend::{rados::TIMEOUT, signals::StopSignals};
use onefold_cluster::{Progress, Session, Settings, Watermarks, Worker, format::ObjectId};
use onefold_core::{Error, Kind};
use serde_json::json;

use super::{Found, cluster::titles, refused};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::{Size, counted},
};

/// Deduplicates a store of the cluster engine in the background, until it is stopped
///
/// Only the cluster engine needs workers: the other engines deduplicate inline, while they write.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold worker pool\n  onefold worker pool --once --cold 0")]
pub(crate) struct Options {
    /// The store: a folder, or rados:[CONF]
    store: PathBuf,

    /// Ends when nothing is left to do. What can't be deduplicated because of damage stays as it is and
    /// is named; the exit status is 3 then
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    answer: Answer,

    /// Threads
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = threads)]
    threads: usize,

    #[command(flatten)]
    pace: Pace,
}

/// When workers deduplicate, and how fast.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pace {
    /// Cluster engine: seconds without a write after which an object is deduplicated
    #[arg(
        long,
        default_value_t = 10,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(0..=86_400)
    )]
    cold: u64,
    /// Cluster engine: client operations a second up to which deduplication is not limited
    #[arg(long, default_value_t = Watermarks::default().operations.0, value_name = "NUMBER")]
    low_iops: u64,
    /// Cluster engine: client operations a second from which on workers may do one operation for
    /// 500 of the clients. Between --low-iops and --high-iops it is one for 100
    #[arg(long, default_value_t = Watermarks::default().operations.1, value_name = "NUMBER")]
    high_iops: u64,
    /// Cluster engine: the same as --low-iops for bytes a second
    #[arg(long, default_value = "16M", value_name = "SIZE")]
    low_bytes: Size,
    /// Cluster engine: the same as --high-iops for bytes a second
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    high_bytes: Size,
    /// On Ceph: seconds until an operation without a reply is sent again; after five times the
    /// operation fails
    #[arg(
        long,
        default_value_t = TIMEOUT.as_secs(),
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    timeout: u64,
}

/// A number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 64;
    text.parse().ok().filter(|n| *n <= MOST).ok_or_else(|| format!("a number up to {MOST}"))
}

impl Pace {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    pub(crate) fn marks(&self) -> Watermarks {
        Watermarks {
            operations: (self.low_iops, self.high_iops),
            bytes: (self.low_bytes.0, self.high_bytes.0),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings { cold: Duration::from_secs(self.cold), ..Settings::default() }
    }
}

/// Deduplicates, until a signal comes or until nothing is left.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let store = match Found::at(&options.store)? {
        Found::Cluster(store) => store,
        other => {
            let why = "it deduplicates while it writes, and needs no worker";
            return Err(refused(&options.store, &other, why));
        }
    };
    if !options.once {
        let mut signals = StopSignals::install()?;
        let backing = Backing::open(&store, options.pace.timeout())?;
        let workers = Workers::start(&backing, options.threads, &options.pace, false)?;
        tracing::info!("deduplicating {store}");
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                signals.wait();
                drop(stop);
            })
            .map_err(|e| Error::from_io("cannot start a thread", e))?;
        // A folder that was moved or replaced takes no more writes, and nobody goes on without a right.
        let mut ended = None;
        while stopped.recv_timeout(LOOK).is_err_and(|error| error == RecvTimeoutError::Timeout)
            && backing.stopped().is_none()
            && ended.is_none()
        {
            ended = workers.ended();
        }
        workers.stop();
        return backing.stopped().or(ended).map_or(Ok(()), |error| Err(error.into()));
    }
    let opened = Opened::with(&store, options.pace.settings(), options.pace.timeout())?;
    let mut worker = Worker::new(opened.session.clone(), options.pace.marks());
    let done = until_done(&mut worker);
    // Also after an error: others need not wait until its leases end.
    worker.release();
    let done = done?;
    let problems = done.problems(&opened.session);
    options.answer.tell(
        &json!({
            "deduplicated_chunks": done.flipped, "left_objects": done.left,
            "problems": problems,
        }),
        format_args!("deduplicated {}", counted(done.flipped, "chunk")),
    )?;
    if !options.answer.json {
        problems.iter().for_each(|problem| output::line(format_args!("problem: {problem}")));
    }
    match problems.len() {
        0 => Ok(()),
        _ => Err(Failure::in_part(format!(
            "{store} is damaged: {}, and all else is done",
            match done.left {
                0 => "a part of it can't be worked on".to_owned(),
                n => format!("{} can't be deduplicated", counted(n, "object")),
            }
        ))),
    }
}

/// Most objects that are named, of those that are left because of damage.
const NAMED_MAX: usize = 100;

/// Errors of steps, between which nothing was deduplicated, after which a worker does not go on.
const ERRORS_MAX: u32 = 10;

/// What was done, and what can't be.
#[derive(Default)]
struct Done {
    /// Chunks that were deduplicated.
    flipped: u64,
    /// Objects on the list that are left because of damage.
    left: u64,
    /// The first of them, and why.
    named: Vec<(ObjectId, String)>,
    /// Why deletions, or steps that are no object's, could not be done.
    others: BTreeSet<String>,
}

impl Done {
    /// Takes an error that ends nothing: one of damage.
    fn take(&mut self, error: Error) -> Result<(), Error> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        if self.others.len() < NAMED_MAX {
            self.others.insert(error.to_string());
        }
        Ok(())
    }

    /// Sentences about all that is damaged.
    fn problems(&self, session: &Session) -> Vec<String> {
        let titles = titles(session, self.named.iter().map(|(object, _)| *object));
        let mut all: Vec<String> = self
            .named
            .iter()
            .zip(titles)
            .map(|((_, why), title)| format!("{title}: {why}"))
            .collect();
        if self.left > all.len() as u64 {
            all.push(format!("and {} more objects", self.left - all.len() as u64));
        }
        all.extend(self.others.iter().cloned());
        all
    }
}

/// Works until nothing is left but what is damaged.
fn until_done(worker: &mut Worker) -> Result<Done, Error> {
    let (mut done, mut left, mut errors) = (Done::default(), 0, 0);
    loop {
        let deleted = match worker.session().delete_step() {
            Ok(deleted) => deleted,
            Err(error) => done.take(error).map(|()| false)?,
        };
        let progress = match worker.step() {
            Ok(progress) => progress,
            Err(error) if errors == ERRORS_MAX => return Err(error),
            Err(error) => {
                errors += 1;
                done.take(error)?;
                Progress::default()
            }
        };
        done.flipped += progress.flipped;
        errors = if progress.flipped > 0 { 0 } else { errors };
        left += progress.left;
        let room = NAMED_MAX.saturating_sub(done.named.len());
        done.named.extend(worker.take_left().into_iter().take(room));
        if progress.round {
            done.left = std::mem::take(&mut left);
            if !deleted && worker.session().backlog()? <= done.left {
                if done.left == 0 {
                    // What was damaged was overwritten or deleted meanwhile.
                    done.named.clear();
                }
                return Ok(done);
            }
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
    /// Why threads ended by themselves.
    ended: std::sync::mpsc::Receiver<Error>,
}

impl Workers {
    /// Starts `count` of them, each with a session of its own. Those that stay try again when they lack a right.
    ///
    /// # Errors
    /// The store's and the system's.
    pub(crate) fn start(
        backing: &Backing,
        count: usize,
        pace: &Pace,
        stays: bool,
    ) -> Result<Workers, Error> {
        let (end, ended) = std::sync::mpsc::channel();
        let mut workers = Workers { threads: Vec::new(), stop: Vec::new(), ended };
        for n in 0..count {
            let session = Arc::new(backing.session(pace.settings())?);
            let worker = Worker::new(session, pace.marks());
            let (stop, stopped) = std::sync::mpsc::channel();
            let end = end.clone();
            let work = move || {
                if let Err(error) = labour(worker, stays, &stopped) {
                    tracing::error!("{error}");
                    // Who does not ask goes on without this worker.
                    let _ = end.send(error);
                }
            };
            let thread = std::thread::Builder::new().name(format!("worker {n}")).spawn(work);
            workers
                .threads
                .push(thread.map_err(|e| Error::from_io("cannot start a thread for a worker", e))?);
            workers.stop.push(stop);
        }
        Ok(workers)
    }

    /// Why one of them ended by itself.
    fn ended(&self) -> Option<Error> {
        self.ended.try_recv().ok()
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

/// How long a worker of a server waits that lacks a right: an operator may give it.
const DENIED: Duration = Duration::from_secs(60);

/// How often a worker looks at the load.
const LOOK: Duration = Duration::from_secs(1);

/// The life of a worker's thread; it ends when the other side of `stopped` is gone, or with the error after
/// which nothing more can be done: another session shut it out, or it lacks a right.
///
/// One that stays when it lacks a right tries again slowly.
fn labour(
    mut worker: Worker,
    stays: bool,
    stopped: &std::sync::mpsc::Receiver<()>,
) -> Result<(), Error> {
    let begun = Instant::now();
    let (mut looked, mut allowed, mut flipped) = (None::<Duration>, u64::MAX, 0);
    let (mut pause, mut idle) = (Duration::ZERO, IDLE);
    let mut resumes = Duration::ZERO;
    while stopped.recv_timeout(pause).is_err_and(|error| error == RecvTimeoutError::Timeout) {
        let now = begun.elapsed();
        // An idle worker says that it is there, for `status`.
        if now < resumes {
            let _ = worker.session().publish(true);
            looked = Some(now);
            pause = (resumes - now).min(LOOK);
            continue;
        }
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
            for (object, why) in worker.take_left() {
                tracing::warn!("object {object}: {why}");
            }
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
        let rests = match step() {
            Ok(rests) => rests,
            Err(error)
                if error.kind() == Kind::Stopped || error.kind() == Kind::Denied && !stays =>
            {
                worker.release();
                return Err(error);
            }
            Err(error) if error.kind() == Kind::Denied => {
                tracing::error!("{error}");
                DENIED
            }
            Err(error) => {
                tracing::warn!("{error}");
                LOOK
            }
        };
        resumes = begun.elapsed() + rests;
        pause = rests.min(LOOK);
    }
    worker.release();
    let _ = worker.session().unpublish();
    Ok(())
}
