//! `onefold send` and `onefold receive`: snapshots of a block store, copied to another one.

use std::{
    io::{BufReader, Read, Write},
    path::PathBuf,
};

use clap::Args;
use onefold_backend::new_file::NewFile;
use onefold_block::{Copies, MEMORY_MIN, SendWhat, Settings, Totals};
use onefold_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::{block_store, served_or_not, volume::block};
use onefold::parts::{
    control::{ReceiveLine, Request, stream::UNWRITTEN},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// Bytes that are read, or copied, at once.
const COPY_BYTES: usize = 256 << 10;

/// Writes a snapshot to standard output, for `onefold receive` on another host
///
/// With --from, only what changed since another snapshot is sent, which the other side must have.
/// The stream has the data as it is: encrypt it on its way, as ssh does. Every block is verified
/// before it is sent, and damage ends the stream. A stream that was cut off goes on with --resume.
/// Block stores only; the store may be served meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold send disk.onefold vm1@monday | ssh host onefold receive /srv/disk.onefold\n  \
                  onefold send disk.onefold vm1@tuesday --from vm1@monday --output vm1.stream")]
pub(crate) struct SendOptions {
    /// The store
    store: PathBuf,

    /// The snapshot, like vm1@monday
    snapshot: String,

    /// Sends what changed since this snapshot, like vm1@sunday
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,

    /// Goes on where a receive was cut off: what `onefold receive --token` prints there
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,

    /// Writes a new file instead of standard output; it gets its name when it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Prints JSON, whose keys are stable. Needs --output: standard output has the stream otherwise
    #[arg(long)]
    json: bool,
}

/// Makes a snapshot of what `onefold send` writes, from standard input, and the volume that holds it
///
/// The volume is a replica, which can only be read and which further receives change, until `onefold
/// volume promote`. Snapshot and volume are there when the whole stream has come. A receive that was
/// cut off is kept: --token tells how the sender goes on, and --abort gives it up. Block stores only;
/// the store may be served meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold send disk.onefold vm1@monday | ssh host onefold receive /srv/disk.onefold\n  \
                  onefold receive disk.onefold copy-of-vm1 < vm1.stream\n  \
                  onefold receive disk.onefold --token\n  \
                  onefold receive disk.onefold vm1 --abort")]
pub(crate) struct ReceiveOptions {
    /// The store
    store: PathBuf,

    /// The volume that gets the snapshot [default: the sender's name]
    volume: Option<String>,

    /// Also gives up what a volume holds that was changed since the snapshot that both have
    #[arg(long)]
    rollback: bool,

    /// Receives nothing, and prints for each receive that was cut off the token for `onefold send
    /// --resume`
    #[arg(long, conflicts_with_all = ["rollback", "abort"])]
    token: bool,

    /// Receives nothing, and gives up what was being received for the volume
    #[arg(long, conflicts_with = "rollback", requires = "volume")]
    abort: bool,

    #[command(flatten)]
    answer: Answer,
}

/// The content of a stream, as JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// Bytes that were sent as data, before compression.
    data_bytes: u64,
    /// Bytes that had been sent before.
    repeated_bytes: u64,
    /// Zeroes.
    zero_bytes: u64,
    /// Holes.
    hole_bytes: u64,
}

impl From<&Totals> for Sent {
    fn from(totals: &Totals) -> Sent {
        Sent {
            data_bytes: totals.data * 4096,
            repeated_bytes: totals.repeats * 4096,
            zero_bytes: totals.zeroes * 4096,
            hole_bytes: totals.holes * 4096,
        }
    }
}

/// What was received, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    /// The snapshot, like `vm1@monday`.
    name: String,
    /// Its size.
    bytes: u64,
    #[serde(flatten)]
    sent: Sent,
}

impl From<&onefold_block::Received> for Received {
    fn from(received: &onefold_block::Received) -> Received {
        Received {
            name: received.name.clone(),
            bytes: received.bytes,
            sent: Sent::from(&received.totals),
        }
    }
}

/// The choices of a sender.
pub(crate) fn what(
    snapshot: &str,
    from: &Option<String>,
    resume: &Option<String>,
) -> Result<SendWhat> {
    Ok(SendWhat {
        snapshot: snapshot.to_owned(),
        from: from.clone(),
        resume: resume.as_deref().map(str::parse).transpose()?,
        plain: false,
    })
}

/// Sends.
pub(crate) fn send(options: &SendOptions) -> Result<(), Failure> {
    if options.json && options.output.is_none() {
        let message = "standard output has the stream: --json needs --output FILE";
        return Err(Failure::usage(message));
    }
    let file = block_store(&options.store)?;
    let sent = match &options.output {
        None => send_to(&file, options, &mut std::io::stdout().lock())?,
        Some(path) => {
            let new = NewFile::create(path)?;
            let sent = send_to(&file, options, &mut new.file())?;
            new.publish()?;
            sent
        }
    };
    if options.json {
        output::json(&sent)?;
    }
    Ok(())
}

fn send_to(file: &StoreFile, options: &SendOptions, out: &mut dyn Write) -> Result<Sent> {
    let SendOptions { snapshot, from, resume, .. } = options;
    let wanted = what(snapshot, from, resume)?;
    let request =
        Request::Send { snapshot: snapshot.clone(), from: from.clone(), resume: resume.clone() };
    let out = std::cell::RefCell::new(out);
    served_or_not(
        file,
        |server| server.fetch(&request, |stream| copy(stream, &mut **out.borrow_mut())),
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let sent = Copies::of(working.store()).send(&wanted, &mut **out.borrow_mut());
            let closed = working.close();
            Ok(Sent::from(&sent.and_then(|totals| closed.map(|()| totals))?))
        },
    )
}

/// Copies a stream to its end.
fn copy(from: &mut dyn Read, to: &mut dyn Write) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let n = match from.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.map_err(|e| Error::from_io("the stream can't be read", e))?,
        };
        let written = if n == 0 { to.flush() } else { to.write_all(&buffer[..n]) };
        written.map_err(|e| Error::from_io(UNWRITTEN, e))?;
        if n == 0 {
            return Ok(());
        }
    }
}

/// Receives, or tells or gives up what was being received.
pub(crate) fn receive(options: ReceiveOptions) -> Result<(), Failure> {
    let ReceiveOptions { store, volume, rollback, token, abort, answer } = options;
    let file = block_store(&store)?;
    if token {
        return tokens(&file, volume.as_deref(), answer);
    }
    if let (true, Some(volume)) = (abort, &volume) {
        let request = Request::ReceiveAbort { volume: volume.clone() };
        block::change(&file, &request)?;
        return answer.tell(&super::volume::done(&request), super::volume::said(&request));
    }
    let request = Request::Receive { volume: volume.clone(), rollback };
    let received: Received = served_or_not(
        &file,
        |server| {
            server
                .send(&request, &mut |_, _| {}, |outlet| copy(&mut std::io::stdin().lock(), outlet))
        },
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let input = BufReader::with_capacity(COPY_BYTES, std::io::stdin().lock());
            let look = &mut |_| Ok(());
            let received =
                Copies::of(working.store()).receive(volume.as_deref(), rollback, input, look);
            let closed = working.close();
            let received = received.and_then(|received| closed.map(|()| received))?;
            Ok(Received::from(&received))
        },
    )?;
    if answer.json {
        output::json(&received)?;
    } else {
        output::line(format_args!(
            "received snapshot '{}' of {}: {} of data came, and {} that was there already",
            received.name.escape_debug(),
            Size(received.bytes),
            Size(received.sent.data_bytes),
            Size(received.sent.repeated_bytes)
        ));
    }
    Ok(())
}

fn tokens(file: &StoreFile, volume: Option<&str>, answer: Answer) -> Result<(), Failure> {
    let mut receives: Vec<ReceiveLine> = served_or_not(
        file,
        |server| server.ask(&Request::ReceiveList),
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let receives = ReceiveLine::all(working.store());
            working.close().map(|()| receives)
        },
    )?;
    let of = |receive: &ReceiveLine| {
        let name = receive.name.rsplit_once('@').map_or("", |(volume, _)| volume);
        volume.is_none_or(|volume| volume == name)
    };
    receives.retain(of);
    if answer.json {
        output::json(&receives)?;
    } else if receives.is_empty() {
        let message = "nothing is being received";
        return Err(Failure::from(Error::new(Kind::NotFound, message)));
    } else if volume.is_some() {
        receives.iter().for_each(|receive| output::line(&receive.token));
    } else {
        for receive in receives {
            output::line(format_args!(
                "{:>9} of {:<9}  {}  {}",
                Size(receive.received_bytes).to_string(),
                Size(receive.bytes).to_string(),
                receive.token,
                receive.name.escape_debug()
            ));
        }
    }
    Ok(())
}
