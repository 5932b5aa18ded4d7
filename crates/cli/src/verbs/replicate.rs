//! `onefold send` and `onefold receive`: snapshots of volumes, copied to another store, of either engine.

use std::{
    io::{BufReader, Cursor, Read, Write},
    path::PathBuf,
};

use clap::Args;
use onefold_backend::{
    new_file::NewFile,
    signals::{Stop, StopSignals},
};
use onefold_core::{Error, Kind, Result};
use onefold_stream::{SendWhat, negotiates};

use crate::report::receiving::GIVE_UP_DAMAGED;

use super::{
    copied::{Received, Sent, what},
    copies::{Given, Here, Place, tidy},
    negotiate, output_path,
    patience::{Patience, Watched},
    volume::{block, cluster},
};
use onefold::parts::control::{Request, stream::UNWRITTEN};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::Size,
};

/// Bytes that are read, or copied, at once.
const COPY_BYTES: usize = 256 << 10;

/// How long the other side may be silent: as a server's answer may take, and longer than a receive that
/// waits for room on a full store.
const WAIT_SECONDS: u32 = 600;

/// The fate of a sender that is silent for too long.
const SILENT: &str = "nothing came from the sender";

/// Writes a snapshot to standard output, for `onefold receive` on another host
///
/// With --from, only what changed since another snapshot is sent, which the other side must have.
/// The stream has the data as it is: encrypt it on its way, as ssh does. Every block is verified
/// before it is sent, and damage ends the stream; with --skip-damaged what can't be read is left out
/// instead, and reads as an error there. A stream that was cut off goes on with --resume.
/// Block and cluster stores, each to either; the store may be served meanwhile.
///
/// With --negotiate, onefold runs the command itself and asks the receive that it starts which blocks
/// are missing there: others do not go over the wire. Both must be block stores with one secret, which
/// `onefold create block --like` gives them, and neither may compare bytes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold send disk.onefold vm1@monday | ssh host onefold receive /srv/disk.onefold\n  \
                  onefold send disk.onefold vm1@tuesday --from vm1@monday --output vm1.stream\n  \
                  onefold send disk.onefold vm1@monday --negotiate 'ssh host onefold receive \
                  /srv/disk.onefold'")]
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

    /// Runs this command by the shell, which starts a receive, like 'ssh host onefold receive STORE', and
    /// sends only the blocks that are missing there
    #[arg(long, value_name = "CMD", conflicts_with = "output")]
    negotiate: Option<String>,

    /// With --negotiate: gives up when the receive takes nothing and says nothing for so many seconds;
    /// 0 waits without end
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_SECONDS, requires = "negotiate")]
    wait: u32,

    /// Goes on past data that can't be read: its blocks read as errors where they are received, until
    /// somebody writes or trims them. The command ends with status 3 when it skipped any
    #[arg(long)]
    skip_damaged: bool,

    /// Writes a new file instead of standard output, for which - stands; it gets its name when it is
    /// whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Prints JSON, whose keys are stable. Needs --output or --negotiate: standard output has the stream
    /// otherwise
    #[arg(long)]
    json: bool,
}

/// Makes a snapshot of what `onefold send` writes, from standard input, and the volume that holds it
///
/// The volume is a replica, which can only be read and which further receives change, until `onefold
/// volume promote`. Snapshot and volume are there when the whole stream has come. A receive that was
/// cut off is kept until another snapshot is sent to the volume: --token tells how the sender goes on,
/// --abort and --expire give it up. A sender that asks (`onefold send --negotiate`) gets its answers on
/// standard output. Block and cluster stores, from either; the store may be served meanwhile. A cluster
/// store takes no stream of --skip-damaged or --negotiate.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold send disk.onefold vm1@monday | ssh host onefold receive /srv/disk.onefold\n  \
                  onefold receive disk.onefold copy-of-vm1 < vm1.stream\n  \
                  onefold receive disk.onefold --token\n  \
                  onefold receive disk.onefold vm1 --abort\n  \
                  onefold receive disk.onefold --expire 7")]
pub(crate) struct ReceiveOptions {
    /// The store
    store: PathBuf,

    /// The volume that gets the snapshot [default: the sender's name]
    volume: Option<String>,

    /// Also gives up what a volume holds that was changed since the snapshot that both have
    #[arg(long)]
    rollback: bool,

    /// The domain of an encrypted store that a new volume belongs to; what it already has stays where it
    /// is. Without it, the one that each store begins with
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "abort", "expire"])]
    domain: Option<String>,

    /// Receives nothing, and prints for each receive that was cut off the token for `onefold send
    /// --resume`
    #[arg(long, conflicts_with_all = ["rollback", "abort"])]
    token: bool,

    /// Receives nothing, and gives up what was being received for the volume
    #[arg(long, conflicts_with = "rollback", requires = "volume")]
    abort: bool,

    /// Receives nothing, and gives up what was being received where nothing has come for so many days. A
    /// cluster store also gives up receives that are damaged, as nobody can go on with them
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["rollback", "abort", "token", "volume"])]
    expire: Option<u32>,

    /// Gives up when the sender sends nothing for so many seconds; 0 waits without end
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_SECONDS,
          conflicts_with_all = ["abort", "token", "expire"])]
    wait: u32,

    #[command(flatten)]
    answer: Answer,
}

/// Why archives have no such streams.
const NO_SNAPSHOTS: &str = "it has no snapshots of volumes";

/// Sends.
pub(crate) fn send(options: &SendOptions) -> Result<(), Failure> {
    let to = output_path(options.output.as_deref());
    if options.json && to.is_none() && options.negotiate.is_none() {
        let message =
            "standard output has the stream: --json needs --output FILE or --negotiate CMD";
        return Err(Failure::usage(message));
    }
    let place = Place::at(&options.store, NO_SNAPSHOTS)?;
    if let Some(command) = &options.negotiate {
        let Place::Block(file) = &place else { return Err(Failure::from(asks_nothing())) };
        let snapshot = &options.snapshot;
        let (wanted, request) = asked(options, true)?;
        let patience = Patience::of(options.wait);
        let sent: Sent = negotiate::send(file, &wanted, &request, command, &patience)?;
        if options.json {
            output::json(&sent)?;
        } else {
            output::line(format_args!(
                "sent snapshot '{}': {} of data, and the other store had {}",
                snapshot.escape_debug(),
                Size(sent.data_bytes),
                Size(sent.held_bytes)
            ));
        }
        return whole_or_not(&sent, snapshot);
    }
    let sent = match to {
        None => {
            ends_when_asked(&options.snapshot)?;
            send_to(&place, options, &mut std::io::stdout().lock())?
        }
        Some(path) => {
            let new = NewFile::create(path)?;
            let sent = send_to(&place, options, &mut new.file())?;
            new.publish()?;
            sent
        }
    };
    if options.json {
        output::json(&sent)?;
    }
    whole_or_not(&sent, &options.snapshot)
}

/// From now on a signal ends this process with a sentence, also while it waits for who reads the
/// stream. A server notices that nobody listens any more; a store that was opened for this is found as
/// after any crash.
fn ends_when_asked(snapshot: &str) -> Result<()> {
    let mut signals = StopSignals::install()?;
    let name = snapshot.escape_debug().to_string();
    let watching = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let signal = signals.wait();
        let _ = Failure::new(format!(
            "interrupted: the stream of '{name}' is not whole; what came of it goes on with the token of \
             `onefold receive --token`"
        ))
        .tell("onefold");
        std::process::exit(if signal == Stop::Interrupt { 130 } else { 143 });
    });
    watching.map(drop).map_err(|e| Error::from_io("cannot start a thread for signals", e))
}

/// What is to be sent, for a store that nobody serves and for a server.
fn asked(options: &SendOptions, negotiates: bool) -> Result<(SendWhat, Request)> {
    let SendOptions { snapshot, from, resume, skip_damaged, .. } = options;
    let request = Request::Send {
        snapshot: snapshot.clone(),
        from: from.clone(),
        resume: resume.clone(),
        negotiates,
        skip_damaged: *skip_damaged,
    };
    Ok((what(snapshot, from, resume, *skip_damaged)?, request))
}

/// The end of a command whose stream may have lost blocks.
fn whole_or_not(sent: &Sent, name: &str) -> Result<(), Failure> {
    if sent.lost_bytes == 0 {
        return Ok(());
    }
    Err(Failure::in_part(format!(
        "{} of '{}' can't be read where it comes from: they read as errors in the snapshot that is \
         received, until they are written or trimmed",
        Size(sent.lost_bytes),
        name.escape_debug()
    )))
}

fn send_to(place: &Place, options: &SendOptions, out: &mut dyn Write) -> Result<Sent> {
    let (wanted, request) = asked(options, false)?;
    let mut out = Told { out, bar: Progress::new("sending"), bytes: 0 };
    let out = std::cell::RefCell::new(&mut out);
    place.served_or_not(
        true,
        |server| server.fetch(&request, |stream| copy(stream, &mut **out.borrow_mut())),
        |here| here.give(Given::Send(&wanted), &mut **out.borrow_mut()),
    )
}

/// A stream that says how far it is.
struct Told<'a> {
    out: &'a mut dyn Write,
    bar: Progress,
    bytes: u64,
}

impl Write for Told<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.bar.set(self.bytes, 0);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
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
    let ReceiveOptions { store, volume, rollback, domain, token, abort, expire, wait, answer } =
        options;
    let place = Place::at(&store, NO_SNAPSHOTS)?;
    if token {
        return tokens(&place, volume.as_deref(), answer);
    }
    if let (true, Some(volume)) = (abort, &volume) {
        let request = Request::ReceiveAbort { volume: volume.clone() };
        match &place {
            Place::Block(file) => block::change(file, &request)?,
            Place::Cluster(url) => cluster::change(url, &request)?,
        }
        return answer.tell(&super::volume::done(&request), super::volume::said(&request));
    }
    if let Some(days) = expire {
        return expire_all(&place, days, answer);
    }
    // Whether the sender asks is known by how its stream begins.
    let patience = Patience::of(wait);
    let mut input = Watched::source(std::io::stdin(), &patience)?;
    let begins = patience.judge(beginning(&mut input), SILENT)?;
    let asks = begins.as_slice().try_into().is_ok_and(negotiates);
    if asks && matches!(place, Place::Cluster(_)) {
        return Err(Failure::from(asks_nothing()));
    }
    let request = Request::Receive {
        volume: volume.clone(),
        rollback,
        domain: domain.clone(),
        negotiates: asks,
    };
    let received: Result<Received> = place.served_or_not(
        false,
        |server| {
            let input = Watched::source(std::io::stdin(), &patience)?;
            let input = Cursor::new(begins.clone()).chain(input);
            if asks {
                return server.talk(&request, input, &mut std::io::stdout().lock());
            }
            server.send(&request, &mut |_, _| {}, |outlet| copy(&mut { input }, outlet))
        },
        |here| {
            let input = Watched::source(std::io::stdin(), &patience)?;
            let input = BufReader::with_capacity(COPY_BYTES, input);
            let input = begins.as_slice().chain(input);
            let mut out = std::io::stdout().lock();
            here.receive((volume.as_deref(), rollback), domain.as_deref(), input, &mut out)
        },
    );
    let received = patience.judge(received, SILENT)?;
    if asks {
        // Standard output has the answers for the sender, which says the rest.
    } else if answer.json {
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
    whole_or_not(&received.sent, &received.name)
}

/// Why a cluster store neither asks which blocks are missing, nor says so.
fn asks_nothing() -> Error {
    let what = "a cluster store can't say which blocks it has, or ask for them: its chunks are larger, and have \
                other fingerprints. Send without --negotiate";
    Error::new(Kind::Unsupported, what)
}

/// The first bytes of a stream, as many as tell what it is.
fn beginning(input: &mut impl Read) -> Result<Vec<u8>> {
    let mut begins = Vec::new();
    let read = input.take(16).read_to_end(&mut begins);
    read.map(|_| begins).map_err(|e| Error::from_io("the stream can't be read", e))
}

/// Says that a receive was given up because nobody sent any more.
pub(crate) fn expired(name: &str) -> String {
    format!("gave up what was being received as '{}'", name.escape_debug())
}

fn expire_all(place: &Place, days: u32, answer: Answer) -> Result<(), Failure> {
    let gone: Vec<String> = if place.receives()?.is_empty() {
        Vec::new()
    } else {
        place.served_or_not(
            false,
            |server| server.ask(&Request::ReceiveExpire { days }),
            |here| match here {
                Here::Block(working) => {
                    onefold_block::Copies::of(working.store()).expire_receives(days)
                }
                Here::Cluster(opened) => {
                    let gone = onefold_cluster::Copies::of(&opened.session).expire_receives(days);
                    tidy(&opened.session);
                    gone
                }
            },
        )?
    };
    if answer.json {
        output::json(&gone)?;
    } else if gone.is_empty() {
        output::line("nothing was given up");
    } else {
        gone.iter().for_each(|name| output::line(expired(name)));
    }
    Ok(())
}

fn tokens(place: &Place, volume: Option<&str>, answer: Answer) -> Result<(), Failure> {
    let mut receives = place.receives()?;
    receives.retain(|receive| volume.is_none_or(|volume| volume == receive.volume()));
    if answer.json {
        output::json(&receives)?;
    } else if receives.is_empty() {
        let message = "nothing is being received";
        return Err(Failure::from(Error::new(Kind::NotFound, message)));
    } else if volume.is_some() {
        for receive in &receives {
            match &receive.damage {
                None => output::line(&receive.token),
                Some(damage) => {
                    let what = format!("{}; {GIVE_UP_DAMAGED}", damage.escape_debug());
                    return Err(Failure::from(Error::new(Kind::Corrupt, what)));
                }
            }
        }
    } else {
        for receive in receives {
            if let Some(damage) = &receive.damage {
                output::line(format_args!(
                    "damaged    {}: {}; {GIVE_UP_DAMAGED}",
                    receive.name.escape_debug(),
                    damage.escape_debug()
                ));
                continue;
            }
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
