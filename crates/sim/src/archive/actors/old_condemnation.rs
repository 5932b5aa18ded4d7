//! A put found chunks that a collection condemned before the put ended. Then all references are counted
//! anew, and what was condemned before is condemned no more.

use std::sync::Arc;

use onefold_archive::{
    Collection, CollectionOptions as Options, Cutting, Session, StreamWriter, Writing,
};
use onefold_testbed::Rng;

use crate::archive::run::{Flow, Putting, Sim, Stop};

/// Bytes of the streams: several containers.
const BYTES: usize = 40_000;

impl Sim {
    /// Between two lives. What clients see is as before when it ends.
    pub(crate) fn old_condemnation(&mut self) -> Flow {
        if !std::mem::take(&mut self.params.old_condemnation) {
            return Ok(());
        }
        let mut content = vec![0; BYTES];
        Rng::new(self.params.seed ^ 0x636f_6e64_656d_6e64).fill(&mut content);
        let content = Arc::new(content);
        let mut first = self.put_up_to_the_end("first", &content)?;
        self.finish(&mut first).map_err(|error| self.judge("put", &error))?;
        drop(first);
        // The second stream is of the chunks of the first one.
        let mut second = self.put_up_to_the_end("second", &content)?;
        self.remove_one("first")?;
        let mut collection = self.collection()?;
        while !collection.doing().starts_with("rechecking") {
            if !collection.step().map_err(|error| self.judge("gc", &error))? {
                break;
            }
        }
        drop(collection);
        let condemned =
            !second.archive.refresh().map_err(|e| self.judge("refresh", &e))?.condemned.is_empty();
        self.finish(&mut second).map_err(|error| self.judge("put", &error))?;
        drop(second);
        for recounts in [true, false] {
            let mut collection = self.collection()?;
            if recounts {
                collection.recount();
            }
            while collection.step().map_err(|error| self.judge("gc", &error))? {}
        }
        if condemned {
            self.reach.hit("what was condemned was spared before a recount");
        }
        self.look()?;
        self.remove_one("second")
    }

    /// A put that has looked up nearly all of its chunks.
    fn put_up_to_the_end(
        &mut self,
        name: &str,
        content: &Arc<Vec<u8>>,
    ) -> Result<Box<Putting>, Stop> {
        let archive = self.open(true)?;
        let session =
            Session::begin(&archive, false).map_err(|error| self.judge("begin", &error))?;
        let mut putting = Box::new(Putting {
            writer: StreamWriter::new(&session, self.now),
            cutting: Cutting::new(&*archive),
            writing: Writing::default(),
            name: name.into(),
            content: content.clone(),
            fed: 0,
            known: false,
            served: false,
            session,
            archive,
        });
        while putting.fed < content.len() {
            self.feed(&mut putting).map_err(|error| self.judge("put", &error))?;
        }
        let Putting { session, writer, cutting, writing, .. } = &mut *putting;
        let mut batch = cutting.some();
        batch.fingerprint(session.domain());
        let added = session.add(&batch, writing, &mut |open| writer.pack_and_write(open));
        added.map_err(|error| self.judge("put", &error))?;
        Ok(putting)
    }

    fn remove_one(&mut self, name: &str) -> Flow {
        let archive = self.open(true)?;
        archive.remove(name).map_err(|error| self.judge("remove", &error))?;
        self.streams.remove(name);
        Ok(())
    }

    fn collection(&mut self) -> Result<Collection, Stop> {
        let archive = self.open(true)?;
        let options = Options {
            now: self.now,
            keep_partial: self.params.keep_partial,
            trash: self.params.trash,
            wait: false,
            reserve_bytes: 256 << 10,
            encode_all: false,
            doubts_clock: false,
        };
        Collection::begin(&archive, options).map_err(|error| self.judge("gc", &error))
    }
}
