//! The upstream thread: a single-threaded runtime, its endpoints, and the commands for them.

use crate::grpc::{CANCELLED, UNAVAILABLE};
use crate::server::network;
use crate::threads::counters::count;
use crate::threads::flow::Flow;
use crate::threads::outbox::Dispatcher;
use crate::threads::runtime::{self, TaskWaker, spawn};
use crate::upstream::shared::{Command, Detail, Event, Shared, Target, ToEndpoint};
use crate::upstream::status::End;
use crate::upstream::{connecting, connection};
use rustc_hash::FxHashMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use tokio::task::AbortHandle;

const GIVEN_UP: &str = "the connection was given up";

thread_local! {
    static NETWORK: RefCell<Option<Rc<Network>>> = const { RefCell::new(None) };
}

/// The upstream thread's own state; no other thread sees it.
pub struct Network {
    pub shared: Arc<Shared>,
    endpoints: RefCell<FxHashMap<u64, Rc<Endpoint>>>,
    dispatcher: Dispatcher,
    /// Dropped with this state, which ends the wait of `Host::join`.
    _ended: Option<mpsc::Sender<()>>,
}

/// An upstream that runs on the thread of an edge.
pub struct Guest {
    pub shared: Arc<Shared>,
    /// Dropped when the upstream has ended.
    pub ended: mpsc::Sender<()>,
}

/// One endpoint as the upstream thread sees it.
pub struct Endpoint {
    pub number: u64,
    pub flow: Arc<Flow>,
    pub commands: RefCell<VecDeque<ToEndpoint>>,
    pub waker: TaskWaker,
    /// The endpoint's task runs, and will take its commands before it returns.
    pub running: Cell<bool>,
    is_connected: Cell<bool>,
    pub given_up: Cell<bool>,
    task: OnceCell<AbortHandle>,
}

impl Endpoint {
    fn wake(&self) {
        if !self.running.get() {
            self.waker.wake();
        }
    }
}

/// Starts an upstream thread; it runs until `Command::Stop`.
pub fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    runtime::start("kvorum-upstream", before_sleep, after_sleep, |runtime| {
        runtime.block_on(Network::enter(shared, None).take_commands());
        leave();
    })
}

/// Runs an upstream on the thread of an edge, until `Command::Stop` or the end of that thread.
pub fn host(guest: Guest) {
    let network = Network::enter(guest.shared, Some(guest.ended));
    spawn(async move {
        network.take_commands().await;
        leave();
    });
}

/// Ends the upstream of this thread, and every connection of it.
pub fn leave() {
    let Some(network) = NETWORK.take() else { return };
    network.dispatcher.clear(&network.shared.outbox);
    for (_, endpoint) in network.endpoints.borrow_mut().drain() {
        endpoint.waker.clear();
        endpoint.task.get().inspect(|task| task.abort());
    }
}

/// Gives a command to an endpoint of this thread; false if the thread has no upstream.
pub fn command(endpoint: u64, command: ToEndpoint) -> bool {
    NETWORK.with_borrow(|network| {
        let Some(network) = network else { return false };
        let found = network.endpoints.borrow().get(&endpoint).cloned();
        network.to_endpoint(endpoint, found.as_deref(), command);
        true
    })
}

pub fn after_sleep() {
    NETWORK.with_borrow(|network| {
        if let Some(network) = network {
            network.shared.outbox.awake();
        }
    });
}

/// Ends a pass, after everything that was ready: wakes the loop if it has something to poll.
pub fn before_sleep() {
    NETWORK.with_borrow(|network| {
        let Some(network) = network else { return };
        network.shared.outbox.announce_sleep(|| network.dispatch());
        network.shared.wakeup.ring();
    });
}

impl Network {
    /// Starts an upstream on this thread.
    fn enter(shared: Arc<Shared>, ended: Option<mpsc::Sender<()>>) -> Rc<Network> {
        let network = Rc::new(Network {
            shared,
            endpoints: RefCell::default(),
            dispatcher: Dispatcher::default(),
            _ended: ended,
        });
        NETWORK.set(Some(network.clone()));
        network
    }

    /// Applies the loop's commands until `Command::Stop`.
    async fn take_commands(self: Rc<Self>) {
        self.dispatcher.run(&self.shared.outbox, || self.dispatch()).await;
    }

    /// Hands the loop's commands to their endpoints.
    pub fn dispatch(self: &Rc<Self>) {
        // Most calls of a batch go to one endpoint.
        let mut last: Option<Rc<Endpoint>> = None;
        for command in self.shared.outbox.take() {
            match command {
                Command::Connect(number, target) => self.connect(number, *target),
                Command::At(number, command) => {
                    if last.as_ref().is_none_or(|endpoint| endpoint.number != number) {
                        last = self.endpoints.borrow().get(&number).cloned();
                    }
                    self.to_endpoint(number, last.as_deref(), command);
                }
                Command::Stop => self.dispatcher.stop(),
            }
        }
    }

    fn to_endpoint(&self, number: u64, endpoint: Option<&Endpoint>, command: ToEndpoint) {
        match (endpoint, command) {
            (Some(endpoint), ToEndpoint::Disconnect) => {
                endpoint.given_up.set(true);
                endpoint.wake();
            }
            (Some(endpoint), command) if endpoint.is_connected.get() => {
                let mut commands = endpoint.commands.borrow_mut();
                let was_empty = commands.is_empty();
                commands.push_back(command);
                drop(commands);
                if was_empty {
                    endpoint.wake();
                }
            }
            (_, ToEndpoint::Begin(call)) => {
                let text = "the endpoint is not connected";
                let end = Detail::Ended(End::unprocessed(UNAVAILABLE, text));
                self.tell(number, &Arc::default(), Event { number: call.number, detail: end });
            }
            _ => {}
        }
    }

    fn tell(&self, endpoint: u64, flow: &Arc<Flow>, event: Event) {
        self.publish(endpoint, flow, VecDeque::from([event]));
    }

    /// Reports events: those of relayed calls to the relay, and all others to the loop.
    pub fn publish(&self, endpoint: u64, flow: &Arc<Flow>, mut events: VecDeque<Event>) {
        let relayed = network::with_relay(|network, relay| relay.take(network, &mut events));
        if let Some(answers @ 1..) = relayed {
            count(&self.shared.counters.messages_received, answers);
        }
        self.shared.publish(endpoint, flow, events);
    }

    fn connect(self: &Rc<Self>, number: u64, target: Target) {
        let endpoint = Rc::new(Endpoint {
            number,
            flow: Arc::default(),
            commands: RefCell::default(),
            waker: TaskWaker::default(),
            running: Cell::new(false),
            is_connected: Cell::new(false),
            given_up: Cell::new(false),
            task: OnceCell::new(),
        });
        self.endpoints.borrow_mut().insert(number, endpoint.clone());
        let task = spawn(self.clone().serve(endpoint.clone(), target));
        let _ = endpoint.task.set(task);
    }

    /// Connects to an endpoint and carries its calls until the connection is lost.
    async fn serve(self: Rc<Self>, endpoint: Rc<Endpoint>, target: Target) {
        let counters = &self.shared.counters;
        let told = |detail| {
            self.tell(endpoint.number, &endpoint.flow, Event { number: endpoint.number, detail });
        };
        let mut connecting = pin!(connecting::connect(&self.shared, &endpoint, &target));
        let connected = poll_fn(|cx| {
            endpoint.waker.set(cx.waker());
            match endpoint.given_up.get() {
                true => Poll::Ready(Err(GIVEN_UP.to_owned())),
                false => connecting.as_mut().poll(cx),
            }
        });
        let reason = match connected.await {
            Ok(connection) => {
                count(&counters.connections_made, 1);
                endpoint.is_connected.set(true);
                told(Detail::Connected);
                Box::pin(connection::run(&self, &endpoint, connection)).await
            }
            Err(reason) => {
                count(&counters.connections_failed, 1);
                reason
            }
        };
        self.endpoints.borrow_mut().remove(&endpoint.number);
        for command in endpoint.commands.take() {
            self.to_endpoint(endpoint.number, None, command);
        }
        told(Detail::Disconnected(reason));
    }
}

/// The end of calls whose connection the loop abandoned, and the reason.
pub fn given_up() -> (End, String) {
    (End::new(CANCELLED, GIVEN_UP), GIVEN_UP.to_owned())
}
