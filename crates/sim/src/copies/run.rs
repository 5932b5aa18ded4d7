//! One seed, from its beginning to its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_archive::{
    Archive, Attributes, BackupRequest, Chunking, Collection, CollectionOptions, Content,
    CopyChoice, CopyFailure, CopyRequest, CopySink, Entries, Event, FileMap, Format, Known, Rule,
    Settings, Snapshot, SnapshotId, Stat, TreeEntry, TreeReader, TreeWhat, Verify, check, forget,
    plan_copy,
};
use onefold_core::{Error, Kind, Result};
use onefold_testbed::{Reach, Rng, VirtualFiles, files::Layout};

use super::{params::Params, storing::Storing};
use crate::{
    checker::{Checker, Failure},
    front::{Outcome, guarded},
};

/// The files of a snapshot.
type Tree = BTreeMap<String, Vec<u8>>;

/// Bytes of a piece of content: files are so many pieces, so that different ones have one length.
const PIECE: usize = 3000;

/// The set of what is copied, and of what the second archive stores of its own.
const SETS: [&str; 2] = ["copied", "own"];

struct Sim {
    params: Params,
    loud: bool,
    rng: Rng,
    there: VirtualFiles,
    here: VirtualFiles,
    reach: Reach,
    /// What each snapshot has, of both archives.
    trees: BTreeMap<SnapshotId, Tree>,
    /// What the source lists, in its order.
    listed_there: Vec<SnapshotId>,
    /// What the second archive must list.
    listed_here: BTreeSet<SnapshotId>,
    /// What it forgot.
    forgotten: BTreeSet<SnapshotId>,
    /// What it may list or not: a process ended in the middle.
    unsure: BTreeSet<SnapshotId>,
    /// Other content that another archive copied, or might have, under ids of the source.
    imposed: BTreeMap<SnapshotId, Tree>,
    /// The source holds what nobody can read as it was.
    is_hurt: bool,
    tree: Tree,
    pool: Vec<Vec<u8>>,
    now: u64,
    made: u64,
}

/// What happens beside a copy.
struct Beside {
    rng: Rng,
    percent: u64,
    now: u64,
    archives: [Arc<Archive>; 2],
    collections: [Option<Collection>; 2],
    /// Snapshots of either archive that may go.
    may_go: [Vec<SnapshotId>; 2],
    gone: [BTreeSet<SnapshotId>; 2],
    collected: [bool; 2],
}

pub(super) fn run(params: Params, loud: bool) -> Outcome<Params> {
    let mut sim = Sim::new(params, loud);
    let failure = guarded(|| sim.all()).err();
    let mut reach = std::mem::take(&mut sim.reach);
    reach.merge(&sim.here.reach());
    let trace = sim.here.trace() ^ sim.there.trace().rotate_left(1);
    Outcome { seed: sim.params.seed, params: sim.params.clone(), failure, trace, reach }
}

fn failed(checker: Checker, message: impl Into<String>) -> Failure {
    Failure::new(checker, message)
}

fn unexplained(what: &str, error: &Error) -> Failure {
    failed(Checker::Unexplained, format!("{what}: {error}"))
}

fn options(now: u64) -> CollectionOptions {
    CollectionOptions {
        now,
        keep_partial: 1_000_000,
        trash: 0,
        wait: false,
        reserve_bytes: 0,
        encode_all: false,
        doubts_clock: false,
    }
}

impl Sim {
    fn new(params: Params, loud: bool) -> Sim {
        let mut rng = Rng::new(params.seed);
        let files = |rng: &mut Rng| VirtualFiles::new(Layout::default(), rng.fork());
        let (there, here) = (files(&mut rng), files(&mut rng));
        let pool = (0..12)
            .map(|_| {
                let mut piece = vec![0; PIECE];
                rng.fill(&mut piece);
                piece
            })
            .collect();
        Sim {
            params,
            loud,
            rng,
            there,
            here,
            reach: Reach::default(),
            trees: BTreeMap::new(),
            listed_there: Vec::new(),
            listed_here: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            unsure: BTreeSet::new(),
            imposed: BTreeMap::new(),
            is_hurt: false,
            tree: Tree::new(),
            pool,
            now: 1_000,
            made: 0,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.loud {
            println!("{}", what());
        }
    }

    fn all(&mut self) -> Result<(), Failure> {
        for (n, files) in [(1, &self.there), (2, &self.here)] {
            let secret = if self.params.shares { 1 } else { n };
            let format = Format {
                chunking: Chunking::FastCdc(1 << 10),
                segment_bytes: 64 << 10,
                reserve_bytes: 0,
                ..Format::new([n; 16], [secret; 32], [n; 16]).with_features()
            };
            Archive::create(files, &format).map_err(|error| unexplained("create", &error))?;
        }
        for _ in 0..self.params.moves {
            self.now += self.rng.within(1, 100);
            if self.rng.percent(self.params.impostor) {
                self.impose()?;
            }
            match self.rng.below(12) {
                0..3 => self.backup_there()?,
                3 => self.own_backup()?,
                4 => self.forget_there()?,
                5 => self.forget_here()?,
                6 => self.collect()?,
                7 if self.params.rots => self.rot(),
                8 => self.copy_by_name()?,
                _ => self.copy()?,
            }
        }
        self.copy()?;
        self.look()?;
        let archive = self.open_here()?;
        let report = check(&archive, true, &mut |_, _, _| {});
        match report.map_err(|error| unexplained("check", &error))?.is_well() {
            true => Ok(()),
            false => Err(failed(Checker::StoreCheck, "the second archive is damaged")),
        }
    }

    fn open(&self, files: &VirtualFiles, broken: Option<Rule>) -> Result<Arc<Archive>> {
        let settings = Settings { broken, ..self.params.settings() };
        Archive::open(Arc::new(files.clone()), true, settings).map(Arc::new)
    }

    fn open_here(&self) -> Result<Arc<Archive>, Failure> {
        self.open(&self.here, self.params.broken()).map_err(|error| unexplained("open", &error))
    }

    fn open_there(&self) -> Result<Arc<Archive>, Failure> {
        self.open(&self.there, self.params.broken()).map_err(|error| unexplained("open", &error))
    }

    fn fresh_id(&mut self) -> SnapshotId {
        let mut id = [0; 16];
        self.rng.fill(&mut id);
        self.made += 1;
        SnapshotId(id)
    }

    /// Some files change, come and go.
    fn change(&mut self) {
        for _ in 0..self.rng.within(1, 4) {
            let folder = if self.rng.percent(40) { "d/" } else { "" };
            let name = format!("{folder}f{}", self.rng.below(6));
            if self.rng.percent(15) {
                self.tree.remove(&name);
                continue;
            }
            let mut content = Vec::new();
            for _ in 0..self.rng.within(1, 6) {
                if self.rng.percent(40) {
                    let mut piece = vec![0; PIECE];
                    self.rng.fill(&mut piece);
                    content.extend_from_slice(&piece);
                    let n = self.rng.below(self.pool.len() as u64) as usize;
                    self.pool[n] = piece;
                } else if let Some(piece) = self.rng.pick(&self.pool) {
                    content.extend_from_slice(piece);
                }
            }
            self.tree.insert(name, content);
        }
    }

    fn backup_there(&mut self) -> Result<(), Failure> {
        self.change();
        // Somebody's program stores rubbish under the fingerprint of what it should have stored.
        let is_rubbish = self.params.rots && self.rng.percent(30);
        self.is_hurt |= is_rubbish;
        let broken = if is_rubbish { Some(Rule::StoredAsFingerprinted) } else { None };
        let archive = self.open(&self.there, broken);
        let archive = archive.map_err(|error| unexplained("open", &error))?;
        let id = self.backup(&archive, 0)?;
        self.say(|| format!("{id} is made at the source, rubbish: {is_rubbish}"));
        self.listed_there.push(id);
        Ok(())
    }

    /// Another archive copies a snapshot that says of itself what one of the source says, before that one comes. It
    /// has the source's secret, and other content.
    fn impose(&mut self) -> Result<(), Failure> {
        let (there, here) = (self.open_there()?, self.open_here()?);
        let (listed, tables) = (there.tables(), here.tables());
        let mut come =
            listed.snapshots.listed().filter(|one| tables.snapshots.get(one.id).is_err());
        let Some(victim) = come.nth(self.rng.below(3) as usize).cloned() else { return Ok(()) };
        let Some(mut tree) = self.trees.get(&victim.id).cloned() else { return Ok(()) };
        tree.values_mut().for_each(|content| self.rng.fill(content));
        let files = VirtualFiles::new(Layout::default(), self.rng.fork());
        let format = Format {
            chunking: Chunking::FastCdc(1 << 10),
            segment_bytes: 64 << 10,
            reserve_bytes: 0,
            ..Format::new([3; 16], [1; 32], [3; 16]).with_features()
        };
        let failed = |error| unexplained("another archive", &error);
        Archive::create(&files, &format).map_err(failed)?;
        let other = self.open(&files, None).map_err(failed)?;
        let request = BackupRequest {
            id: victim.id,
            set: victim.set.clone(),
            host: victim.host.clone(),
            now: victim.began,
            accept: true,
            ..BackupRequest::default()
        };
        let mut storing = Storing::begin(&other, &request).map_err(failed)?;
        tell(&tree, &mut storing).and_then(|()| storing.end()).map_err(failed)?;
        let snapshot = other.refresh().and_then(|tables| tables.snapshots.get(victim.id).cloned());
        let snapshot = snapshot.map_err(failed)?;
        let copying = CopyRequest::new(&other, &snapshot, &here, None);
        let copying = copying.map_err(|failure| failed(failure.error))?;
        let mut storing = Storing::begin(&here, &copying.request).map_err(failed)?;
        let (mut rng, is_killed) = (self.rng.fork(), self.rng.percent(50));
        let told = copying.tell(&mut storing, &mut || rng.percent(40));
        told.map_err(|failure| failed(failure.error))?;
        self.say(|| format!("{} comes from another archive, killed: {is_killed}", victim.id));
        self.imposed.insert(victim.id, tree);
        if is_killed {
            self.reach.hit("another archive was faster, and was killed");
        } else {
            storing.end().map_err(failed)?;
            self.listed_here.insert(victim.id);
            self.reach.hit("another archive was faster");
        }
        Ok(())
    }

    fn own_backup(&mut self) -> Result<(), Failure> {
        let archive = self.open_here()?;
        let id = self.backup(&archive, 1)?;
        self.say(|| format!("{id} is the second archive's own"));
        self.listed_here.insert(id);
        Ok(())
    }

    fn backup(&mut self, archive: &Arc<Archive>, set: usize) -> Result<SnapshotId, Failure> {
        let request = BackupRequest {
            id: self.fresh_id(),
            set: SETS[set].into(),
            host: "host".into(),
            now: self.now,
            accept: true,
            ..BackupRequest::default()
        };
        let stored = Storing::begin(archive, &request).and_then(|mut storing| {
            tell(&self.tree, &mut storing)?;
            storing.end()
        });
        stored.map_err(|error| unexplained("backup", &error))?;
        self.trees.insert(request.id, self.tree.clone());
        Ok(request.id)
    }

    fn forget_there(&mut self) -> Result<(), Failure> {
        let Some(&id) = self.rng.pick(&self.listed_there) else { return Ok(()) };
        let archive = self.open_there()?;
        forget(&archive, &[id], self.now).map_err(|error| unexplained("forget", &error))?;
        self.listed_there.retain(|one| *one != id);
        self.say(|| format!("{id} is forgotten at the source"));
        Ok(())
    }

    /// All but the newest copy may go: a policy never takes that.
    fn may_go_here(&self) -> Vec<SnapshotId> {
        let Ok(archive) = self.open(&self.here, None) else { return Vec::new() };
        let tables = archive.tables();
        let copies = tables.snapshots.listed().filter(|one| one.set == SETS[0]);
        let copies: Vec<_> = copies.filter(|one| !self.imposed.contains_key(&one.id)).collect();
        let newest = copies.iter().max_by_key(|one| one.ended).map(|one| one.id);
        let all = tables.snapshots.listed().map(|one| one.id);
        all.filter(|id| Some(*id) != newest && !self.unsure.contains(id)).collect()
    }

    fn forget_here(&mut self) -> Result<(), Failure> {
        let may_go = self.may_go_here();
        let Some(&id) = self.rng.pick(&may_go) else { return Ok(()) };
        let archive = self.open_here()?;
        forget(&archive, &[id], self.now).map_err(|error| unexplained("forget", &error))?;
        self.went(id);
        Ok(())
    }

    fn went(&mut self, id: SnapshotId) {
        self.say(|| format!("{id} is forgotten here"));
        self.listed_here.remove(&id);
        self.forget(id);
    }

    /// What another archive put in the place of a snapshot may be followed by that one.
    fn forget(&mut self, id: SnapshotId) {
        if !self.imposed.contains_key(&id) {
            self.forgotten.insert(id);
        }
    }

    fn collect(&mut self) -> Result<(), Failure> {
        for archive in [self.open_there()?, self.open_here()?] {
            let collected = Collection::begin(&archive, options(self.now));
            let collected = collected.and_then(|collection| collection.run(&mut |_| {}));
            match collected {
                // What rotted is not merged.
                Err(_) if self.is_hurt => {}
                collected => drop(collected.map_err(|error| unexplained("collect", &error))?),
            }
        }
        Ok(())
    }

    fn rot(&mut self) {
        self.is_hurt |= self.there.rot("segment-");
    }

    fn copy(&mut self) -> Result<(), Failure> {
        self.copy_chosen(&CopyChoice::default())
    }

    fn copy_by_name(&mut self) -> Result<(), Failure> {
        let Some(&id) = self.rng.pick(&self.listed_there) else { return Ok(()) };
        let choice = CopyChoice { ids: Some(vec![id]), ..CopyChoice::default() };
        if self.forgotten.remove(&id) {
            self.unsure.insert(id);
        }
        self.copy_chosen(&choice)
    }

    fn copy_chosen(&mut self, choice: &CopyChoice) -> Result<(), Failure> {
        let (from, to) = (self.open_there()?, self.open_here()?);
        let mut is_down = false;
        let plan = plan_copy(&from, &to.tables(), choice, self.now);
        if plan.others.iter().any(|id| !self.imposed.contains_key(id)) {
            return Err(failed(Checker::Volumes, "two snapshots have one id"));
        }
        if (plan.passed > 0 || !plan.blocked.is_empty()) && choice.ids.is_none() {
            self.reach.hit("what was forgotten stayed away");
        }
        for snapshot in &plan.wanted {
            if self.forgotten.contains(&snapshot.id) && choice.ids.is_none() {
                let what = format!("{} comes back, which was forgotten", snapshot.id);
                return Err(failed(Checker::OldStaysOld, what));
            }
            is_down = !self.copy_one(&from, &to, snapshot, choice.ids.is_some())?;
            if is_down {
                break;
            }
        }
        drop((from, to));
        if is_down {
            let mark = match self.rng.percent(60) {
                true => {
                    self.here.power_cycle();
                    "the power failed in a copy"
                }
                false => {
                    self.here.kill();
                    "a copy was killed"
                }
            };
            self.reach.hit(mark);
        }
        self.look()
    }

    /// Copies a snapshot; false when the process ended.
    fn copy_one(
        &mut self,
        from: &Arc<Archive>,
        to: &Arc<Archive>,
        snapshot: &Snapshot,
        is_named: bool,
    ) -> Result<bool, Failure> {
        let ends = self.rng.percent(self.params.ends);
        let mut beside = Beside {
            rng: self.rng.fork(),
            percent: self.params.beside,
            now: self.now,
            archives: [self.open_there()?, self.open_here()?],
            collections: [None, None],
            may_go: [self.listed_there.clone(), self.may_go_here()],
            gone: [BTreeSet::new(), BTreeSet::new()],
            collected: [false, false],
        };
        beside.may_go[0].retain(|id| *id != snapshot.id);
        if ends {
            self.here.arm_crash(self.rng.below(120));
        }
        self.unsure.insert(snapshot.id);
        let copied = self.copying(from, to, snapshot, &mut beside);
        let is_down = self.here.is_down();
        let Beside { gone: [gone_there, gone_here], collected, .. } = beside;
        self.here.disarm();
        self.listed_there.retain(|id| !gone_there.contains(id));
        for (is_so, mark) in [
            (collected[0], "the source was collected beside a copy"),
            (collected[1], "a collection ran beside a copy"),
            (!gone_here.is_empty(), "a snapshot was forgotten in the middle of a copy"),
        ] {
            if is_so {
                self.reach.hit(mark);
            }
        }
        for id in gone_here {
            match is_down {
                true => drop(self.unsure.insert(id)),
                false => self.went(id),
            }
        }
        self.say(|| format!("{} is copied: {copied:?}, down: {is_down}", snapshot.id));
        if is_down {
            return match copied {
                Err(CopyFailure { at_source: true, error, .. }) if !self.is_hurt => {
                    Err(unexplained("the source was blamed", &error))
                }
                _ => Ok(false),
            };
        }
        match copied {
            Ok(()) => {
                self.unsure.remove(&snapshot.id);
                self.listed_here.insert(snapshot.id);
                self.reach.hit("a snapshot was copied");
                if is_named {
                    self.reach.hit("a snapshot was copied by its name");
                }
                Ok(true)
            }
            Err(failure) if failure.is_gone && !self.listed_there.contains(&snapshot.id) => {
                self.unsure.remove(&snapshot.id);
                self.reach.hit("a snapshot was gone before it was copied");
                Ok(true)
            }
            Err(failure) if failure.at_source && self.is_hurt => {
                self.unsure.remove(&snapshot.id);
                self.reach.hit("a snapshot that can't be read was left out");
                Ok(true)
            }
            Err(failure) => Err(unexplained("copy", &failure.error)),
        }
    }

    fn copying(
        &mut self,
        from: &Arc<Archive>,
        to: &Arc<Archive>,
        snapshot: &Snapshot,
        beside: &mut Beside,
    ) -> Result<(), CopyFailure> {
        let here = CopyFailure::at_target;
        let copying = CopyRequest::new(from, snapshot, to, None)?;
        if copying.request.checkpoint.is_some() {
            self.reach.hit("a copy took a checkpoint over");
        }
        let mut storing = Storing::begin(to, &copying.request).map_err(here)?;
        let told = copying.tell(&mut storing, &mut || beside.goes_on());
        for (n, mark) in [
            (storing.checkpoints, "a checkpoint of a copy"),
            (storing.named, "chunks were named and not read"),
            (storing.taken, "files were taken over"),
        ] {
            if n > 0 {
                self.reach.hit(mark);
            }
        }
        told?;
        storing.end().map(|_| ()).map_err(here)
    }

    /// Compares the second archive with the model.
    fn look(&mut self) -> Result<(), Failure> {
        let archive = self.open_here()?;
        let listed: BTreeSet<SnapshotId> =
            archive.tables().snapshots.listed().map(|one| one.id).collect();
        for id in std::mem::take(&mut self.unsure) {
            match listed.contains(&id) {
                true => {
                    self.listed_here.insert(id);
                }
                // A copy that did not end was never there, and may come.
                false => {
                    if self.listed_here.remove(&id) {
                        self.forget(id);
                    }
                }
            }
        }
        if let Some(id) = self.listed_here.iter().find(|id| !listed.contains(id)) {
            return Err(failed(Checker::DurableSurvives, format!("{id} is gone")));
        }
        if let Some(id) = listed.iter().find(|id| !self.listed_here.contains(id)) {
            return Err(failed(
                Checker::OldStaysOld,
                format!("{id} is listed, and nobody made it"),
            ));
        }
        let mut reader =
            TreeReader::new(&archive).map_err(|error| unexplained("reading", &error))?;
        for id in listed {
            let snapshot = archive.tables().snapshots.get(id).cloned();
            match snapshot.and_then(|snapshot| read(&mut reader, &snapshot)) {
                Err(error) => {
                    let what = format!("{id} can't be read: {error}");
                    return Err(failed(Checker::DurableSurvives, what));
                }
                Ok(tree) if self.imposed.get(&id) == Some(&tree) => {}
                Ok(tree) if Some(&tree) != self.trees.get(&id) => {
                    return Err(failed(Checker::NeverWrong, format!("{id} has other files")));
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

impl Beside {
    /// Something else happens, perhaps; true when a checkpoint is due.
    fn goes_on(&mut self) -> bool {
        if !self.rng.percent(self.percent) {
            return self.rng.percent(20);
        }
        let n = usize::from(self.rng.percent(60));
        if self.rng.percent(20)
            && let Some(&id) = self.rng.pick(&self.may_go[n])
            && !self.gone[n].contains(&id)
        {
            // The process may end in it.
            let _ = forget(&self.archives[n], &[id], self.now);
            self.gone[n].insert(id);
        }
        let options = options(self.now);
        let begun = self.collections[n].take();
        let begun = begun.map_or_else(|| Collection::begin(&self.archives[n], options), Ok);
        let Ok(mut collection) = begun else { return false };
        for _ in 0..self.rng.within(1, 6) {
            match collection.step() {
                Ok(true) => {}
                Ok(false) => {
                    self.collected[n] = true;
                    return false;
                }
                Err(_) => return false,
            }
        }
        self.collections[n] = Some(collection);
        false
    }
}

fn entry(name: &str, what: TreeWhat) -> TreeEntry {
    TreeEntry {
        name: name.into(),
        what,
        mode: 0o600,
        uid: 1,
        gid: 2,
        // Times tell nothing.
        seconds: 3,
        nanoseconds: 4,
        link: 0,
        is_in_part: false,
        attributes: Attributes::default(),
    }
}

/// Tells of files, those in `d` first, as a backup that knows nothing of earlier ones.
fn tell(tree: &Tree, storing: &mut Storing) -> Result<()> {
    let enter =
        |name| Event::Enter(entry(name, TreeWhat::Directory(None)), Stat::default(), Known::new());
    storing.event(enter(""))?;
    storing.event(enter("d"))?;
    let mut is_below = true;
    for (path, content) in tree {
        let name = path.strip_prefix("d/");
        if name.is_none() && std::mem::take(&mut is_below) {
            storing.event(Event::Leave(false))?;
        }
        storing.bytes(content)?;
        let file = entry(name.unwrap_or(path), TreeWhat::File(0, FileMap::default()));
        storing.event(Event::File(file, Stat::default(), None))?;
    }
    if is_below {
        storing.event(Event::Leave(false))?;
    }
    storing.event(Event::End(0))
}

/// The files of a snapshot, each chunk verified.
fn read(reader: &mut TreeReader, snapshot: &Snapshot) -> Result<Tree> {
    let root = reader.root(snapshot)?;
    let mut tree = Tree::new();
    let mut open = vec![(String::new(), root.directory)];
    while let Some((path, directory)) = open.pop() {
        let TreeWhat::Directory(top) = directory.what else { continue };
        let mut entries = Entries::new(top, None);
        while let Some((entry, _)) = entries.next(reader)? {
            let path = format!("{path}{}", String::from_utf8_lossy(&entry.name));
            match &entry.what {
                TreeWhat::Directory(_) => open.push((path + "/", entry)),
                TreeWhat::File(bytes, map) => {
                    let mut content = Vec::new();
                    reader.read(*bytes, map, Verify::Chunks, &mut |part| {
                        match part {
                            Content::Bytes(part) => content.extend_from_slice(part),
                            Content::Zeroes(n) | Content::Hole(n) => {
                                content.resize(content.len() + n as usize, 0);
                            }
                        }
                        Ok(())
                    })?;
                    tree.insert(path, content);
                }
                _ => return Err(Error::new(Kind::Corrupt, "an entry of another kind")),
            }
        }
    }
    Ok(tree)
}
