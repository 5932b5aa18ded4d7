//! Streams are put and read, a piece at a time.

use std::sync::Arc;

use onefold_archive::{
    Content, Cutting, Ended, Ingest, Reader, Session, Shape, StreamWriter, Verify, Writing,
};
use onefold_core::{Error, Kind};

use crate::{
    archive::{
        checks::places::look_at_classes,
        model::Unsure,
        params::{ALL_AT_ONCE, Profile},
        run::{Flow, Putting, Reading, Sim, Stop},
    },
    checker::{Checker, Failure},
};

impl Sim {
    pub(crate) fn content(&mut self) -> Arc<Vec<u8>> {
        let mut content = Vec::new();
        for _ in 0..self.rng.below(10) {
            if self.rng.percent(25) {
                let mut fresh = vec![0; self.rng.within(1, 6_000) as usize];
                self.rng.fill(&mut fresh);
                content.extend(fresh);
            } else if let Some(piece) = self.rng.pick(&self.pool) {
                content.extend_from_slice(piece);
            }
        }
        Arc::new(content)
    }

    pub(crate) fn put_move(&mut self) -> Flow {
        let Some(mut putting) = self.actors.putting.take() else { return self.begin_put() };
        if putting.fed < putting.content.len() {
            let done = self.feed(&mut putting);
            return self.after_put(putting, done, false);
        }
        if self.rng.percent(10) {
            // The process is killed; what it wrote stays.
            self.say(|| format!("put of {} killed", putting.name));
            self.reach.hit("a put killed");
            return Ok(());
        }
        let done = self.finish(&mut putting);
        self.after_put(putting, done, true)
    }

    pub(crate) fn after_put(
        &mut self,
        mut putting: Box<Putting>,
        done: Result<(), Error>,
        last: bool,
    ) -> Flow {
        if let Err(error) = &done {
            let _ = self.is_out_of_numbers(error);
        }
        match done {
            Ok(()) if last => {
                self.say(|| format!("put {} of {} bytes", putting.name, putting.content.len()));
                self.unsure = None;
                self.streams.insert(putting.name.clone(), putting.content.clone());
                // What its index disk did not give is stored again.
                let misses = putting.archive.index_failure().is_some();
                if putting.known && putting.session.new_bytes > 0 && !misses {
                    let message = format!(
                        "{} bytes of {} were stored again",
                        putting.session.new_bytes, putting.name
                    );
                    return Err(Failure::new(Checker::DuplicatesFound, message).into());
                }
                self.look_at_put(&putting)
            }
            Ok(()) => {
                self.actors.putting = Some(putting);
                Ok(())
            }
            Err(error)
                if error.kind() == Kind::NoSpace
                    && self.params.profile == Profile::FullDisk
                    && !self.files.is_down() =>
            {
                self.say(|| "put: the disk is full".into());
                self.reach.hit("a put met a full disk");
                self.unsure = None;
                putting.writer.abandon();
                if self.files.is_down() { Err(Stop::Down) } else { Ok(()) }
            }
            Err(error) if self.is_of_erased(&error, putting.session.domain().number()) => {
                self.unsure = None;
                Ok(())
            }
            Err(error) => {
                if !last {
                    self.unsure = None;
                }
                Err(self.judge("put", &error))
            }
        }
    }

    /// What a put has encoded at once lies where it belongs.
    fn look_at_put(&mut self, putting: &Putting) -> Flow {
        let gathers = self.params.late.map_or(0, |late| late.gathers);
        // Other streams of a server store chunks that this one takes as duplicates.
        if gathers == 0 || putting.served {
            return Ok(());
        }
        let before = putting.session.tables().clone();
        let found = Reader::new(&putting.archive).and_then(|mut reader| {
            look_at_classes(&mut reader, &putting.name, &before, gathers == ALL_AT_ONCE)
        });
        match found {
            Ok(Ok(shared)) => {
                self.reach.hit("chunks encoded at once");
                if shared > 0 {
                    self.reach.hit("chunks encoded at once by their counts");
                }
                Ok(())
            }
            Ok(Err(failure)) => Err(failure.into()),
            Err(error) if error.kind() == Kind::Corrupt && self.damaged => Ok(()),
            Err(error) => Err(self.judge("reader", &error)),
        }
    }

    pub(crate) fn begin_put(&mut self) -> Flow {
        let served = self
            .actors
            .serving
            .as_ref()
            .map(|serving| (serving.archive.clone(), serving.ingest.clone()));
        let is_served = served.is_some();
        let (archive, ingest) = match served {
            Some((archive, ingest)) => {
                if self.rng.percent(10) {
                    let other = self.open(true)?;
                    match Session::begin(&other, false) {
                        Err(error) if error.kind() == Kind::Busy => {
                            self.reach.hit("a second ingesting process was sent away")
                        }
                        Err(error) => return Err(self.judge("begin", &error)),
                        Ok(_) => {
                            return Err(Failure::new(
                                Checker::Unexplained,
                                "two processes ingest at once",
                            )
                            .into());
                        }
                    }
                }
                self.reach.hit("a put into a served archive");
                (archive, Ok(ingest))
            }
            None => {
                let archive = self.open(true)?;
                let ingest = Ingest::begin(&archive, false, false);
                (archive, ingest)
            }
        };
        let begun = ingest.and_then(|ingest| Session::on(&ingest).map(|session| (ingest, session)));
        let (ingest, session) = match begun {
            Err(error) if error.kind() == Kind::Busy && self.actors.backing.is_some() => {
                self.reach.hit("a put waits for a backup");
                return Ok(());
            }
            Err(error) => return Err(self.judge("begin", &error)),
            Ok(begun) => begun,
        };
        // Content that is there already must be found, when nothing was ever collected or damaged.
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let simple = !self.params.collects
            && matches!(self.params.profile, Profile::Crashes)
            && !self.params.medium.damages();
        let known =
            if simple && self.rng.percent(40) { self.rng.pick(&names).cloned() } else { None };
        let content = match &known {
            Some(name) => self.streams[name].clone(),
            // Content that lost its references gets them back before it is encoded late.
            None => match self
                .gone
                .clone()
                .filter(|_| self.params.late.is_some() && self.aside.percent(50))
            {
                Some(gone) => gone,
                None => self.content(),
            },
        };
        let name = format!("s{}", self.rng.below(6));
        let session = self.session_for((&archive, &ingest), session, &name);
        let session = session.map_err(|error| self.judge("begin", &error))?;
        let tables = session.tables();
        let domain = session.domain().number();
        let is_of_it =
            |name: &String| tables.streams.get(name).is_some_and(|known| known.domain == domain);
        // Nothing is shared between two data keys.
        let has_changed = tables.data_keys.all().next().is_some();
        let known = known.filter(is_of_it).filter(|_| !has_changed);
        let writer = StreamWriter::new(&session, self.now);
        let cutting = Cutting::new(&**session.domain());
        self.actors.putting = Some(Box::new(Putting {
            archive,
            session,
            writer,
            cutting,
            writing: Writing::default(),
            name,
            content,
            fed: 0,
            known: known.is_some(),
            served: is_served,
        }));
        Ok(())
    }

    pub(crate) fn feed(&mut self, putting: &mut Putting) -> Result<(), Error> {
        let Putting { session, writer, cutting, writing, content, fed, .. } = putting;
        let n = (self.rng.within(1, 12_000) as usize).min(content.len() - *fed);
        let mut rest = &content[*fed..*fed + n];
        *fed += n;
        while !rest.is_empty() {
            let room = cutting.room();
            let part = rest.len().min(room.len());
            room[..part].copy_from_slice(&rest[..part]);
            rest = &rest[part..];
            if let Some(mut batch) = cutting.advance(part) {
                batch.fingerprint(session.domain());
                self.by_older |= batch.is_by_older(session.domain());
                session.add(&batch, writing, &mut |open| writer.pack_and_write(open))?;
            }
        }
        // Batches are larger than these streams: what can be cut is stored now and then.
        if self.rng.percent(30) {
            let mut batch = cutting.some();
            batch.fingerprint(session.domain());
            self.by_older |= batch.is_by_older(session.domain());
            session.add(&batch, writing, &mut |open| writer.pack_and_write(open))?;
        }
        if writer.must_import() {
            self.reach.hit("imported under way");
            writer.import(true)?;
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, putting: &mut Putting) -> Result<(), Error> {
        let Putting { session, writer, cutting, writing, name, content, .. } = putting;
        let mut batch = cutting.end();
        batch.fingerprint(session.domain());
        self.by_older |= batch.is_by_older(session.domain());
        session.add(&batch, writing, &mut |open| writer.pack_and_write(open))?;
        let data =
            session.end_recipe(std::mem::take(writing), &mut |open| writer.pack_and_write(open))?;
        session.seal(&mut |open| writer.pack_and_write(open))?;
        self.unsure = Some(Unsure::Put(name.clone(), content.clone()));
        writer.commit(Ended {
            name: name.clone(),
            shape: Shape::Bytes,
            created: self.now,
            data,
            listing: Vec::new(),
        })?;
        // The put is acknowledged from here on.
        self.streams.insert(name.clone(), content.clone());
        self.unsure = None;
        if self.rng.percent(70) && writer.import(true)? {
            self.reach.hit("imported at the end");
        }
        writer.close()
    }

    pub(crate) fn read_move(&mut self) -> Flow {
        if self.actors.readings.is_empty()
            || (self.actors.readings.len() < 3 && self.rng.percent(40))
        {
            let names: Vec<String> = self.streams.keys().cloned().collect();
            let Some(name) = self.rng.pick(&names).cloned() else { return Ok(()) };
            let archive = self.open(false)?;
            match Reader::new(&archive) {
                Ok(reader) => {
                    let content = self.streams[&name].clone();
                    self.actors.readings.push(Reading { reader, name, content });
                    Ok(())
                }
                Err(error) => Err(self.judge("reader", &error)),
            }
        } else {
            let n = self.rng.below(self.actors.readings.len() as u64) as usize;
            let Reading { mut reader, name, content } = self.actors.readings.swap_remove(n);
            self.reach.hit("a reader read what it had opened");
            self.compare(&mut reader, &name, &content)
        }
    }

    pub(crate) fn compare(&mut self, reader: &mut Reader, name: &str, content: &[u8]) -> Flow {
        let (bytes, read) = read(reader, name);
        match read {
            Ok(()) if bytes == content => Ok(()),
            Ok(()) => {
                Err(Failure::new(Checker::NeverWrong, format!("stream {name} has other bytes"))
                    .into())
            }
            Err(error) if error.kind() == Kind::Corrupt && self.damaged => {
                self.reach.hit("damage was told");
                self.is_hit(name)
            }
            Err(error) if self.files.is_down() => Err(self.judge("read", &error)),
            Err(error) => {
                Err(Failure::new(Checker::DurableSurvives, format!("stream {name}: {error:?}"))
                    .into())
            }
        }
    }

    /// A stream may be unreadable only when bytes that it needs rotted: a process that knows
    /// nothing yet must meet some of them, or find that a collection met them and left them out.
    fn is_hit(&mut self, name: &str) -> Flow {
        let Some(expected) = self.streams.get(name).cloned() else { return Ok(()) };
        let archive = self.open(false)?;
        let Ok(mut reader) = Reader::new(&archive) else { return Ok(()) };
        let ever_met = self.files.forget_met();
        let (bytes, read) = read(&mut reader, name);
        let meets = !self.files.met().is_empty();
        match read {
            // Whoever opened it before it was put again saw the one that rotted.
            Ok(()) if bytes == *expected => Ok(()),
            Err(error) if error.kind() == Kind::NotFound || self.files.is_down() => Ok(()),
            Err(_) if meets => Ok(()),
            Err(error) if ever_met && error.to_string().contains("is not there") => Ok(()),
            read => Err(Failure::new(
                Checker::DurableSurvives,
                format!("stream {name} met no damage: {read:?}"),
            )
            .into()),
        }
    }
}

fn read(reader: &mut Reader, name: &str) -> (Vec<u8>, Result<(), Error>) {
    let mut bytes = Vec::new();
    let read = reader.stream(name).and_then(|stream| {
        reader.read(&stream.recipe, Verify::Groups, &mut |part| {
            match part {
                Content::Bytes(part) => bytes.extend_from_slice(part),
                Content::Zeroes(n) | Content::Hole(n) => bytes.resize(bytes.len() + n as usize, 0),
            }
            Ok(())
        })
    });
    (bytes, read)
}
