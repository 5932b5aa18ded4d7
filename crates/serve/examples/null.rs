//! Serves a volume that stores nothing, to measure what the protocol alone costs.
//!
//! `cargo run --release -p onefold-serve --example null -- /tmp/null.sock [flush µs]`, then for
//! example `fio --name=w --ioengine=nbd --uri='nbd+unix:///null?socket=/tmp/null.sock'
//! --rw=randwrite --bs=4k --iodepth=32 --time_based --runtime=5`, or the example `load` with
//! `vhost /tmp/null.sock.vhost`.
//!
//! Reads give bytes that are not zero, because zeroes would travel as holes. The example prints its
//! counters and its CPU time whenever a connection has closed, and ends at the end of its standard
//! input.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onefold_core::block::bytes_mut;
use onefold_core::{
    BlockRead, Error, Exports, Extent, ExtentKind, Kind, Result, Ticket, Volume, VolumeInfo,
};
use onefold_serve::nbd::{Limits, Server, Statistics};

/// 64 GiB of nothing.
struct Null {
    flush: Duration,
}

impl Volume for Null {
    fn size(&self) -> u64 {
        64 << 30
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            bytes_mut(read.into).fill(0xa5);
        }
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<Ticket> {
        Ok(Ticket(0))
    }

    fn trim(&self, _: u64, _: u64) -> Result<Ticket> {
        Ok(Ticket(0))
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<Ticket> {
        Ok(Ticket(0))
    }

    fn wait(&self, _: Ticket) -> Result<()> {
        self.flush()
    }

    fn flush(&self) -> Result<()> {
        if !self.flush.is_zero() {
            std::thread::sleep(self.flush);
        }
        Ok(())
    }

    fn extents(&self, _: u64, bytes: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent { bytes, kind: ExtentKind::Data }])
    }

    fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

impl Exports for Null {
    fn list(&self) -> Vec<VolumeInfo> {
        vec![VolumeInfo { name: "null".to_owned(), size: self.size() }]
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        match name {
            "null" => Ok(Arc::new(Null { flush: self.flush })),
            _ => Err(Error::new(Kind::NotFound, format!("there is no volume {name:?}"))),
        }
    }
}

/// CPU time of this process in microseconds, by the kernel's count.
fn cpu_us() -> u64 {
    let time = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
    };
    time(rustix::time::ClockId::ProcessCPUTime)
}

fn report(now: Statistics, before: Statistics, cpu_us: u64) {
    let requests =
        |s: Statistics| s.reads + s.writes + s.flushes + s.trims + s.zeroes + s.caches + s.statuses;
    let done = requests(now) - requests(before);
    if done > 0 {
        let each = cpu_us as f64 / done as f64;
        let blocks = ((now.read_bytes + now.written_bytes)
            - (before.read_bytes + before.written_bytes)) as f64
            / 4096.0;
        println!(
            "{done} requests, {:.2} µs CPU each, {:.2} µs per 4 KiB; {now:?}",
            each,
            cpu_us as f64 / blocks
        );
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "/tmp/null.sock".to_owned());
    let flush = Duration::from_micros(arguments.next().and_then(|us| us.parse().ok()).unwrap_or(0));
    let mut server = Server::new(Arc::new(Null { flush }), Limits::default());
    server.add_unix(Path::new(&path))?;
    server.add_vhost("null", Path::new(&format!("{path}.vhost")))?;
    server.start()?;
    println!("serving the volume null on {path}, and as a device on {path}.vhost");

    let (ended, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The server ends when its input ends, or can't be read.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    let (mut before, mut cpu) = (server.statistics(), cpu_us());
    while wait.recv_timeout(Duration::from_millis(200))
        == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
    {
        let now = server.statistics();
        if now.connections == 0 && now != before {
            report(now, before, cpu_us() - cpu);
            (before, cpu) = (now, cpu_us());
        }
    }
    server.stop(Duration::from_secs(1))
}
