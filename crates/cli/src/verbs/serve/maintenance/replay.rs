//! Background replay of a served archive: its portions, one behind the other, while nobody asks for
//! anything.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_archive::{Archive, BackgroundReplay, Ingest, Pace};
use onefold_core::{Error, Kind};
use parking_lot::Mutex;

use super::gate::Gate;
use crate::report::archive::ReplayLine;
use onefold::parts::archive_dir::now;

/// How long clients are waited for while something is held that other processes may need.
const PATIENCE: Duration = Duration::from_secs(30);

/// Until it is looked again whether something is due, when nothing changed.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The portions of a server, and what it tells of them.
pub(super) struct Replay {
    archive: Arc<Archive>,
    replay: BackgroundReplay,
    gate: Arc<Gate>,
    patience: Duration,
    told: Arc<Mutex<ReplayLine>>,
    /// The last change of the archive for which nothing was due, and when that was found.
    nothing_since: Option<(u64, Instant)>,
}

impl Replay {
    pub(super) fn new(ingest: &Arc<Ingest>, archive: &Arc<Archive>, gate: &Arc<Gate>) -> Replay {
        let asked = gate.clone();
        let pace = Pace::new(move |bytes| asked.pass_within(bytes, PATIENCE));
        let told = ReplayLine { idle_seconds: gate.idle_seconds(), ..ReplayLine::default() };
        Replay {
            archive: archive.clone(),
            replay: BackgroundReplay::new(ingest, now(), pace),
            gate: gate.clone(),
            patience: PATIENCE,
            told: Arc::new(Mutex::new(told)),
            nothing_since: None,
        }
    }

    /// What it tells of itself.
    pub(super) fn told(&self) -> Arc<Mutex<ReplayLine>> {
        self.told.clone()
    }

    /// Does all that is due, as long as no client comes. A merge that is half done is kept for clients
    /// that go soon, and given up for those that stay.
    pub(super) fn run(&mut self) {
        while !self.gate.has_ended() {
            if !self.gate.is_open() {
                if !self.replay.is_amid() {
                    break;
                }
                if let Err(error) = self.gate.pass_within(0, self.patience) {
                    self.give_up(&error);
                    break;
                }
            }
            if !self.portion() {
                break;
            }
        }
        self.tell(None);
    }

    /// Tells what is done, and what is being done.
    fn tell(&self, doing: Option<&str>) {
        let (mut told, done) = (self.told.lock(), self.replay.done);
        told.doing = doing.map(str::to_owned);
        (told.imports, told.counts) = (done.imports, done.counts);
        (told.merged_files, told.checkpoints) = (done.merged_files, done.checkpoints);
    }

    /// False when nothing was due a short time ago, and nothing changed since.
    pub(super) fn may_be_due(&self) -> bool {
        let change = self.archive.tables().sequence;
        self.nothing_since.is_none_or(|(at, since)| at != change || since.elapsed() >= LOOK_AGAIN)
    }

    /// Does a portion; false when nothing is due, or clients came.
    fn portion(&mut self) -> bool {
        if !self.may_be_due() {
            return false;
        }
        match self.replay.step(now()) {
            Ok(Some(step)) => {
                self.tell(Some(step.doing()));
                true
            }
            Ok(None) => {
                self.nothing_since = Some((self.archive.tables().sequence, Instant::now()));
                false
            }
            Err(error) => {
                self.give_up(&error);
                false
            }
        }
    }

    /// Lets go of what is half done: nobody shall wait for it.
    fn give_up(&mut self, why: &Error) {
        if why.kind() == Kind::Busy {
            self.told.lock().gave_way += 1;
        } else if !self.gate.has_ended() {
            tracing::warn!("background replay: {why}");
        }
        if let Err(error) = self.replay.rest() {
            tracing::debug!("background replay: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use onefold_archive::{Format, Gauge, PutRequest, Settings, Shape, put_on};
    use onefold_backend::Directory;

    use super::*;
    use crate::verbs::{keeping::file::LoadRule, serve::maintenance::Activity};

    fn noise(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..60_000).map(|_| next()).collect()
    }

    #[test]
    fn a_merge_that_is_half_done_waits_for_clients_that_go_soon_and_not_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let format = Format { reserve_bytes: 0, ..Format::new([1; 16], [2; 32], [3; 16]) };
        Archive::create(&Directory::create(&path).unwrap(), &format).unwrap();
        let settings = Settings {
            container_bytes: 32 << 10,
            ahead_bytes: 0,
            log_ahead_bytes: 4096,
            index_portion: 4,
            ..Settings::default()
        };
        let files = Arc::new(Directory::open(&path, true).unwrap());
        let archive = Arc::new(Archive::open(files, true, settings).unwrap());
        let ingest = Ingest::begin(&archive, false, true).unwrap();
        let activity = Activity::new(|| 0);
        let gate = Arc::new(Gate::new(
            activity.clone(),
            &LoadRule { idle: Duration::from_millis(1), limit: 0, ..LoadRule::default() },
        ));
        let mut replay = Replay::new(&ingest, &archive, &gate);
        let mut streams = 0;
        let mut merge_some = |replay: &mut Replay| {
            while !replay.replay.is_amid() {
                if replay.replay.step(now()).unwrap().is_none() {
                    let name = format!("stream-{streams}");
                    let request =
                        PutRequest { domain: None, name, shape: Shape::Bytes, now: 1, wait: false };
                    let content = noise(streams);
                    put_on(&ingest, request, &Gauge::default(), |to| to.bytes(&content)).unwrap();
                    streams += 1;
                }
            }
        };
        merge_some(&mut replay);
        let client = activity.work();
        replay.patience = Duration::from_millis(50);
        replay.run();
        assert!(!replay.replay.is_amid() && replay.told.lock().gave_way == 1);
        // Nothing is left of it.
        let files = std::fs::read_dir(&path).unwrap();
        let index = files.filter(|file| {
            let name = file.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("index-")
        });
        assert_eq!(index.count(), archive.tables().index.files.len());
        drop(client);
        merge_some(&mut replay);
        let (client, before) = (activity.work(), replay.replay.done.merged_files);
        replay.patience = Duration::from_secs(600);
        let goes = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(client);
        });
        replay.run();
        goes.join().unwrap();
        assert!(!replay.replay.is_amid() && replay.replay.done.merged_files > before);
        assert_eq!(replay.told.lock().gave_way, 1);
        // Clients that stay for longer than the longest time stop nothing for ever.
        let (idle, longest) = (Duration::from_millis(1), Duration::from_millis(2));
        let rule = LoadRule { idle, longest, limit: 0 };
        let gate = Arc::new(Gate::new(activity.clone(), &rule));
        let mut replay = Replay::new(&ingest, &archive, &gate);
        merge_some(&mut replay);
        let _client = activity.work();
        let begun = Instant::now();
        while replay.replay.done.merged_files == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(5));
            replay.run();
        }
        assert!(!replay.replay.is_amid());
    }
}
