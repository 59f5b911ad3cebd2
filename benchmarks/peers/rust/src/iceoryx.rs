//! iceoryx2's publish-subscribe on slices of bytes between processes: `iceoryx [yields]`.
//!
//! One process of a measurement, told on its input what to do, as Side.java of the JVM's peers is:
//! `send|receive|ping|pong key=value ...`. It answers `ready` and waits for `go` twice, the second
//! time when all ports know of each other; then with the result, waits for `close`, and answers
//! `closed`; or with `failed: ...`.
//!
//! Settings of its examples and its benchmark (publish-subscribe): a sample is loaned, filled and
//! sent, the subscriber polls and reads it where it lies. Nothing is dropped: no safe overflow, and
//! a publisher retries until it has delivered, which yields and then sleeps. A subscriber that finds
//! nothing spins as the benchmark does, or with `yields` gives the core away.

mod tally;

use std::collections::HashMap;
use std::io::{Write, stdin, stdout};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use tally::{END, Tally, Times, message, now, sum};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Topic = PortFactory<ipc::Service, [u8], ()>;
type Out = Publisher<ipc::Service, [u8], ()>;
type In = Subscriber<ipc::Service, [u8], ()>;

/// Messages in a subscriber's buffer, of which a slice is one: as many as a ring has.
const DEPTH: usize = 65_536;
const MESSAGE: usize = 300;
/// Bytes of larger slices in it: they stay in the cache, and go half as fast again as in 20 MB.
const SLICES: usize = 600_000;
const LEAST_DEPTH: usize = 4;

/// What this process is to do.
struct Order {
    options: HashMap<String, String>,
    yields: bool,
}

impl Order {
    fn text(&self, key: &str) -> &str {
        self.options.get(key).map_or("", String::as_str)
    }

    fn number(&self, key: &str, otherwise: usize) -> Result<usize> {
        Ok(self
            .options
            .get(key)
            .map_or(Ok(otherwise), |text| text.parse())?)
    }

    fn bytes(&self) -> Result<usize> {
        self.number("bytes", 0)
    }

    fn nanos(&self) -> Result<i64> {
        Ok((self.text("seconds").parse::<f64>()? * 1e9) as i64)
    }

    fn depth(&self) -> Result<usize> {
        let bytes = self.bytes()?;
        Ok(if bytes > MESSAGE {
            (SLICES / bytes).max(LEAST_DEPTH)
        } else {
            DEPTH
        })
    }

    /// Its files are in the run's folder, its shared memory begins with that folder's name.
    fn node(&self) -> Result<Node<ipc::Service>> {
        let folder = self.text("folder");
        let name = folder.rsplit('/').next().unwrap_or("");
        let mut config = Config::default();
        config
            .global
            .set_root_path(&Path::new(format!("{folder}/").as_bytes())?);
        config.global.prefix = FileName::new(format!("{name}-iox2-").as_bytes())?;
        Ok(NodeBuilder::new().config(&config).create()?)
    }

    fn topic(&self, node: &Node<ipc::Service>, name: &str) -> Result<Topic> {
        Ok(node
            .service_builder(&name.try_into()?)
            .publish_subscribe::<[u8]>()
            .enable_safe_overflow(false)
            .subscriber_max_buffer_size(self.depth()?)
            .max_publishers(self.number("senders", 1)?)
            .max_subscribers(self.number("readers", 1)?)
            .open_or_create()?)
    }

    fn publisher(&self, topic: &Topic) -> Result<Out> {
        Ok(topic
            .publisher_builder()
            .initial_max_slice_len(self.bytes()?)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?)
    }

    fn subscriber(&self, topic: &Topic) -> Result<In> {
        Ok(topic
            .subscriber_builder()
            .buffer_size(self.depth()?)
            .create()?)
    }

    fn pause(&self) {
        if self.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Sends a copy of the data; every subscriber has to get it.
fn put(out: &Out, data: &[u8], readers: usize) -> Result<()> {
    let reached = out
        .loan_slice_uninit(data.len())?
        .write_from_slice(data)
        .send()?;
    if reached == readers {
        Ok(())
    } else {
        Err(format!("a message reached {reached} of {readers} subscribers").into())
    }
}

fn say(answer: &str) -> Result<()> {
    println!("{answer}");
    Ok(stdout().flush()?)
}

/// Answers, and waits for a word of the runner.
fn ask(answer: &str) -> Result<()> {
    say(answer)?;
    stdin().read_line(&mut String::new())?;
    Ok(())
}

/// All ports are there; then all know of each other, and none is late.
fn line_up(out: Option<&Out>, inp: Option<&In>) -> Result<()> {
    ask("ready")?;
    if let Some(out) = out {
        out.update_connections()?;
    }
    if let Some(inp) = inp
        && inp.receive()?.is_some()
    {
        return Err("there was a message before the first".into());
    }
    ask("ready")
}

fn send(order: &Order) -> Result<()> {
    let (bytes, nanos) = (order.bytes()?, order.nanos()?);
    let readers = order.number("readers", 1)?;
    let step = if bytes > 100_000 {
        1
    } else {
        (300_000 / bytes).max(1)
    };
    let node = order.node()?;
    let topic = order.topic(&node, "there")?;
    let out = order.publisher(&topic)?;
    let data = message(bytes);
    let mut sent = 0;
    line_up(Some(&out), None)?;
    let start = now();
    loop {
        for _ in 0..step {
            put(&out, &data, readers)?;
        }
        sent += step;
        if now() - start >= nanos {
            break;
        }
    }
    put(&out, &[0; END], readers)?;
    let total = sum(&data).wrapping_mul(sent as u64);
    ask(&format!(
        r#"{{"start": {start}, "bytes": {}, "sum": {total}}}"#,
        sent * bytes
    ))
}

fn receive(order: &Order) -> Result<()> {
    let senders = order.number("senders", 1)?;
    let node = order.node()?;
    let topic = order.topic(&node, "there")?;
    let inp = order.subscriber(&topic)?;
    let mut tally = Tally::default();
    line_up(None, Some(&inp))?;
    while tally.ends < senders {
        match inp.receive()? {
            Some(sample) => tally.take(&sample),
            None => order.pause(),
        }
    }
    ask(&format!(
        r#"{{"end": {}, "bytes": {}, "sum": {}}}"#,
        now(),
        tally.bytes,
        tally.sum
    ))
}

fn await_one(order: &Order, inp: &In, tally: &mut Tally) -> Result<()> {
    loop {
        if let Some(sample) = inp.receive()? {
            tally.take(&sample);
            return Ok(());
        }
        order.pause();
    }
}

fn ping(order: &Order) -> Result<()> {
    let nanos = order.nanos()?;
    let node = order.node()?;
    let out = order.publisher(&order.topic(&node, "there")?)?;
    let inp = order.subscriber(&order.topic(&node, "back")?)?;
    let data = message(order.bytes()?);
    let mut tally = Tally::default();
    let mut times = Times::new();
    line_up(Some(&out), Some(&inp))?;
    let start = now();
    let mut before = start;
    while before - start < nanos && times.have_room() {
        put(&out, &data, 1)?;
        await_one(order, &inp, &mut tally)?;
        let after = now();
        times.add(after - before);
        before = after;
    }
    put(&out, &[0; END], 1)?;
    ask(&times.result())
}

fn pong(order: &Order) -> Result<()> {
    let node = order.node()?;
    let inp = order.subscriber(&order.topic(&node, "there")?)?;
    let out = order.publisher(&order.topic(&node, "back")?)?;
    let data = message(order.bytes()?);
    let mut tally = Tally::default();
    line_up(Some(&out), Some(&inp))?;
    loop {
        await_one(order, &inp, &mut tally)?;
        if tally.ends > 0 {
            break;
        }
        put(&out, &data, 1)?;
    }
    ask(&format!(r#"{{"end": {}}}"#, now()))
}

fn main() -> Result<()> {
    set_log_level(LogLevel::Error);
    let yields = std::env::args().any(|argument| argument == "yields");
    let mut line = String::new();
    while stdin().read_line(&mut line)? > 0 {
        let options = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let order = Order { options, yields };
        let done = match line.split_whitespace().next() {
            Some("send") => send(&order),
            Some("receive") => receive(&order),
            Some("ping") => ping(&order),
            Some("pong") => pong(&order),
            other => Err(format!("{other:?} is nothing to do").into()),
        };
        match done {
            Ok(()) => say("closed")?,
            Err(error) => say(&format!("failed: {error}"))?,
        }
        line.clear();
    }
    Ok(())
}
