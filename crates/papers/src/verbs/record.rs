//! `onefold-lab record`: a trace of what passes through.

use std::path::PathBuf;

use clap::Args;
use onefold_backend::signals::StopSignals;
use onefold_lab::record::{Address as From, Recorder};

use onefold_console::{
    address::{self, Address, uri},
    failure::Failure,
    size::counted,
};

/// Records a trace of an NBD volume, until SIGTERM or Ctrl-C
///
/// Clients connect here instead of to the volume's server. The recorder passes their requests on,
/// and records changes: addresses, times, a hash of each block and the size to which LZ4 shrinks
/// it, but no data. One request is under way at a time, which makes the trace exact and the volume
/// slower.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        onefold-lab record --from nbd+unix:///vm1?socket=/run/onefold.sock \
                        --listen unix:/run/recorder.sock --out vm1.dtrace.zst\n  \
                        onefold-lab record --from nbd://127.0.0.1:10809/ --listen \
                        unix:/run/recorder.sock --out disk.dtrace.zst")]
pub(crate) struct Options {
    /// The volume: nbd+unix:///VOLUME?socket=PATH, nbd://HOST:PORT/VOLUME, or the path of a socket
    #[arg(long, value_name = "VOLUME")]
    from: From,

    /// Address for clients: unix:PATH, or tcp:ADDRESS:PORT with --insecure; can be given several
    /// times
    #[arg(long, required = true, value_name = "ADDRESS")]
    listen: Vec<Address>,

    /// Allows TCP addresses. Everybody who can reach one may use the volume
    #[arg(long)]
    insecure: bool,

    /// The trace, a new file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Records until a signal comes.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    address::let_in(
        &options.listen,
        &[],
        options.insecure,
        "use unix:PATH, or allow it with --insecure",
    )?;
    let mut signals = StopSignals::install()?;
    let mut shown = Vec::new();
    let recorder = Recorder::start(&options.from, &options.out, |server| {
        for address in &options.listen {
            let address = match address {
                Address::Unix(path, door) => {
                    server.add_unix_for(path, door.reach()?)?;
                    Address::Unix(
                        std::path::absolute(path).unwrap_or_else(|_| path.clone()),
                        door.clone(),
                    )
                }
                Address::Tcp(tcp) => Address::Tcp(server.add_tcp(*tcp, options.insecure)?),
            };
            shown.push(uri(&address.to_string(), &options.from.volume));
        }
        Ok(())
    })?;
    tracing::info!("recording into {}: {}", options.out.display(), shown.join(" "));
    signals.wait();
    let records = recorder.finish()?;
    tracing::info!("{} holds {}", options.out.display(), counted(u64::from(records), "record"));
    Ok(())
}
