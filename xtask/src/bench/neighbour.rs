//! The speed that an attack of one peer leaves to another (rule 12 of SECURITY.md): idle
//! connections and a flood of BLOCK_STATUS over TCP, beside a client on a UNIX socket.

use std::{
    io::{BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    fio::{self, Data, Length, Measured, Pattern},
    machine_facts, median,
};
use crate::{
    cleanup::Scratch,
    nbd::Client,
    product::{Build, Onefold, uri},
};

/// Connections of the attacker that do nothing, and that ask.
const IDLE: usize = 34;
const FLOOD: usize = 8;

/// Size of each volume.
const MEBIBYTES: u64 = 256;

/// The attacker's volume has data in every other block of so many: as many extents as one answer
/// tells.
const FRAGMENTS: u64 = 2048;

/// The least share of its rate that is left to the neighbour, and the most by which its slowest
/// requests are delayed.
const RATE_LEFT: f64 = 0.8;
const DELAY: f64 = 3.0;

const READS: Pattern = Pattern {
    rw: "randread",
    request: 4096,
    depth: 1,
    clients: 1,
    flush_every: 1,
    data: Data::Compressible,
};

/// The neighbour's jobs.
const JOBS: [(&str, Pattern); 3] = [
    ("random 4 KiB reads, depth 1", READS),
    ("random 4 KiB reads, depth 16", Pattern { depth: 16, ..READS }),
    ("random 4 KiB writes, each flushed", Pattern { rw: "randwrite", ..READS }),
];

/// Runs the table.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (rounds, seconds) = match arguments {
        [] => (5, 5),
        [quick] if quick == "--quick" => (3, 2),
        _ => bail!("unknown arguments {arguments:?}"),
    };
    let onefold = Onefold::build(Build::Release)?;
    let scratch = Scratch::new("bench-neighbour")?;
    let (store, socket) = (scratch.file("store"), scratch.file("nbd.sock"));
    let volumes = [("greedy", format!("{MEBIBYTES}M")), ("neighbour", format!("{MEBIBYTES}M"))];
    onefold.create(&store, "2G", &["--preallocate", "none"], &volumes)?;
    // Its port is free again at once, and nobody else takes it but by chance.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let listeners = [format!("unix:{}", socket.display()), format!("tcp:{address}")];
    let server = onefold.serve(&store, &listeners, &["--memory", "64M"])?;
    let fill = Pattern {
        rw: "write",
        request: 128 << 10,
        depth: 8,
        clients: 1,
        flush_every: 64,
        data: Data::Compressible,
    };
    let target = uri(&socket, "neighbour");
    fio::run(&scratch, &target, MEBIBYTES, &fill, Length::Mebibytes(MEBIBYTES), 1)?;
    let mut greedy = Client::connect(&socket, "greedy")?;
    let data = [7; 4096];
    greedy.write_all((0..FRAGMENTS).map(|n| (n * 8192, &data[..])))?;
    greedy.disconnect()?;

    println!("{}", machine_facts(scratch.path(), &["fio"]));
    println!(
        "{IDLE} idle connections and {FLOOD} that flood with BLOCK_STATUS, of another peer; \
         --memory 64M; {rounds} rounds in turns, medians.\n"
    );
    println!(
        "| the neighbour | alone: requests/s | p99 µs | attacked: requests/s | p99 µs | rate left \
         | p99 times | statuses/s | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut reached = true;
    for (name, pattern) in JOBS {
        let measure =
            |seed| fio::run(&scratch, &target, MEBIBYTES, &pattern, Length::Seconds(seconds), seed);
        let (mut alone, mut attacked, mut statuses) = (Vec::new(), Vec::new(), 0.0);
        for round in 0..rounds {
            alone.push(measure(100 + round)?);
            let (measured, answered) = under_attack(address, || measure(200 + round))?;
            attacked.push(measured);
            statuses += answered as f64 / (rounds * seconds) as f64;
        }
        reached &= row(name, &alone, &attacked, statuses);
    }
    server.stop()?;
    onefold.check(&store)?;
    Ok(reached)
}

fn row(name: &str, alone: &[Measured], attacked: &[Measured], statuses: f64) -> bool {
    let rate = |all: &[Measured]| median(&all.iter().map(|one| one.per_second).collect::<Vec<_>>());
    let p99 = |all: &[Measured]| median(&all.iter().map(|one| one.p99_us).collect::<Vec<_>>());
    let (left, times) = (rate(attacked) / rate(alone), p99(attacked) / p99(alone));
    let reached = left >= RATE_LEFT && times <= DELAY;
    println!(
        "| {name} | {:.0} | {:.0} | {:.0} | {:.0} | {left:.2} | {times:.2} | {statuses:.0} | {} |",
        rate(alone),
        p99(alone),
        rate(attacked),
        p99(attacked),
        if reached { "reached" } else { "MISSED" },
    );
    reached
}

/// Does something while the attack goes on; also how many statuses the attacker got meanwhile.
fn under_attack<T>(address: SocketAddr, what: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let _idle: Vec<TcpStream> = (0..IDLE).map(|_| connect(address)).collect::<Result<_>>()?;
    let flood: Vec<TcpStream> = (0..FLOOD).map(|_| connect(address)).collect::<Result<_>>()?;
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        for stream in &flood {
            // Its end is that of the attack.
            scope.spawn(|| drop(ask(stream, &answered)));
        }
        let done = what();
        flood.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        Ok((done?, answered.load(Relaxed)))
    })
}

/// Opens the attacker's volume, with structured replies and the context that tells what is
/// allocated.
fn connect(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (name, context) = (b"greedy", b"base:allocation");
    let string = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    let options = [
        (8, Vec::new(), 1),
        (10, [string(name), 1_u32.to_be_bytes().to_vec(), string(context)].concat(), 2),
        (7, [&string(name)[..], &0_u16.to_be_bytes()].concat(), 2),
    ];
    stream.read_exact(&mut [0; 18]).context("the greeting")?;
    stream.write_all(&3_u32.to_be_bytes())?;
    for (option, data, replies) in options {
        let header = [
            &b"IHAVEOPT"[..],
            &u32::to_be_bytes(option),
            &(data.len() as u32).to_be_bytes(),
            &data,
        ]
        .concat();
        stream.write_all(&header)?;
        for _ in 0..replies {
            let mut reply = [0; 20];
            stream.read_exact(&mut reply).context("the answer to an option")?;
            ensure!(reply[12] & 0x80 == 0, "the server refuses option {option}");
            let bytes = u32::from_be_bytes([reply[16], reply[17], reply[18], reply[19]]);
            stream.read_exact(&mut vec![0; bytes as usize])?;
        }
    }
    Ok(stream)
}

/// Asks for the status of the whole volume, 64 times at once, until the connection ends.
fn ask(mut stream: &TcpStream, answered: &AtomicU64) -> Result<()> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0, 0, 0, 7]);
    request.extend([0; 16]);
    request.extend(((MEBIBYTES << 20) as u32).to_be_bytes());
    let requests = request.repeat(64);
    let mut replies = BufReader::with_capacity(256 << 10, stream);
    let mut payload = Vec::new();
    loop {
        stream.write_all(&requests)?;
        for _ in 0..64 {
            let mut header = [0; 20];
            replies.read_exact(&mut header)?;
            payload.resize(
                u32::from_be_bytes([header[16], header[17], header[18], header[19]]) as usize,
                0,
            );
            replies.read_exact(&mut payload)?;
            answered.fetch_add(1, Relaxed);
        }
    }
}
