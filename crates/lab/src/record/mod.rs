//! The recorder: an NBD server that passes everything on to another one, and writes a trace of what
//! changes.
//!
//! Clients connect to the recorder as they would to the server. Changes are passed on one at a
//! time; each block is hashed, and compressed to know its size. The trace can be read at any moment
//! up to a second ago, also when the recorder is killed.

mod address;
mod client;
mod volume;

use std::{path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use onefold_backend::new_file::Spot;
use onefold_core::{BLOCK_BYTES, Error, Kind, Result};
use onefold_serve::nbd::{Limits, Server};
use parking_lot::{Condvar, Mutex};

pub use address::{Address, Place};

use self::{
    client::Client,
    volume::{OneVolume, Recorded},
};
use crate::trace::Writer;

/// How often what was recorded reaches the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// How long clients may take to read their answers at the end.
const CLIENT_GRACE: Duration = Duration::from_secs(10);

/// A recording under way.
pub struct Recorder {
    server: Option<Server>,
    volume: Arc<Recorded>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    ticker: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Connects to the volume, begins the trace in a new file, and takes clients in. `listen` adds
    /// the sockets where they come.
    ///
    /// # Errors
    /// The connection's, the file's and the sockets'.
    pub fn start(
        from: &Address,
        out: &Path,
        listen: impl FnOnce(&mut Server) -> Result<()>,
    ) -> Result<Recorder> {
        let client = Client::connect(from)?;
        let size = client.size();
        if size == 0 || !size.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(Error::new(
                Kind::Unsupported,
                format!("{from} has {size} bytes; a trace is of whole blocks of 4096"),
            ));
        }
        // Its directory may be another one by the time that the sockets are made.
        let spot = Spot::of(out)?;
        let writer = Writer::create(out, size / BLOCK_BYTES as u64)?;
        let started = Recorder::serve(from, client, writer, listen);
        if started.is_err() {
            // Nobody came in: the trace that was begun is empty.
            spot.take_back(false);
        }
        started
    }

    fn serve(
        from: &Address,
        client: Client,
        writer: Writer,
        listen: impl FnOnce(&mut Server) -> Result<()>,
    ) -> Result<Recorder> {
        let volume = Arc::new(Recorded::new(&from.volume, client, writer));
        let mut server = Server::new(Arc::new(OneVolume(volume.clone())), Limits::default());
        listen(&mut server)?;
        let stop: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (stopping, taped) = (stop.clone(), volume.clone());
        let tick = move || {
            let mut stopped = stopping.0.lock();
            while !*stopped {
                stopping.1.wait_for(&mut stopped, WRITE_EVERY);
                taped.write_out();
            }
        };
        let ticker = std::thread::Builder::new()
            .name("trace".into())
            .spawn(tick)
            .map_err(|e| Error::from_io("can't start a thread", e))?;
        let mut recorder = Recorder { server: None, volume, stop, ticker: Some(ticker) };
        server.start()?;
        recorder.server = Some(server);
        Ok(recorder)
    }

    /// Answers what has come, sends clients away and finishes the trace. Gives the number of its
    /// records.
    ///
    /// # Errors
    /// The first failure of the recording; the trace holds what came before it.
    pub fn finish(mut self) -> Result<u32> {
        let ended = self.server.take().map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
        self.end_ticker();
        let records = self.volume.finish()?;
        ended.map(|()| records)
    }

    fn end_ticker(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // The ticker panics only by a bug, and the panic's own message tells of it.
            let _ = ticker.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end_ticker();
    }
}
