//! The network thread: a single-threaded runtime, its connections, and the commands for them.

use crate::server::connection;
use crate::server::inbox::Item;
use crate::server::incidents::Incident;
use crate::server::listener::{self, BoundSocket, ListenerFacts, Listening};
use crate::server::relay::Relay;
use crate::server::room::Account;
use crate::server::shared::{
    Call, Command, ConnectionShared, Event, EventDetail, LISTENER_KINDS, Shared, Unary,
    connection_of,
};
use crate::sockets::transport::Transport;
use crate::threads::counters::{count, uncount};
use crate::threads::flow::Flow;
use crate::threads::outbox::Dispatcher;
use crate::threads::runtime::{self, TaskWaker, spawn};
use crate::tls::server::Tls;
use crate::upstream;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

thread_local! {
    static NETWORK: RefCell<Option<Rc<Network>>> = const { RefCell::new(None) };
}

/// The network thread's own state; no other thread sees it.
pub struct Network {
    pub shared: Arc<Shared>,
    /// Connections that take commands, by number.
    connections: RefCell<FxHashMap<u32, Rc<Connection>>>,
    connections_made: Cell<u32>,
    /// Open sockets, including those of connections that are closing, by kind of listener.
    connections_open: [Cell<usize>; LISTENER_KINDS],
    listeners: RefCell<Vec<AbortHandle>>,
    /// Open listening sockets; an aborted listener closes its socket a little later.
    listeners_open: Cell<usize>,
    dispatcher: Dispatcher,
    pub draining: Cell<bool>,
    /// Notified whenever a connection closes, for listeners that wait at the limit.
    pub closed: Notify,
    pub relay: OnceCell<Relay>,
}

/// The listener and the address from which a client connected.
pub struct Origin {
    pub listener: ListenerFacts,
    pub tls: Option<Rc<Tls>>,
    pub peer: String,
}

/// One connection as the network thread sees it.
pub struct Connection {
    pub number: u32,
    pub listener: ListenerFacts,
    pub tls: Option<Rc<Tls>>,
    pub shared: Arc<ConnectionShared>,
    pub commands: RefCell<VecDeque<Command>>,
    pub waker: TaskWaker,
    /// The client leaves too much unread, so the connection has to end.
    pub expelled: Cell<bool>,
}

/// Starts the network thread; it runs until `Command::Stop`.
pub fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let unparked = shared.clone();
    let after_sleep = move || {
        unparked.outbox.awake();
        upstream::network::after_sleep();
    };
    runtime::start("kvorum-edge", before_sleep, after_sleep, |runtime| run(shared, runtime))
}

fn run(shared: Arc<Shared>, runtime: Runtime) {
    let network = Rc::new(Network {
        shared,
        connections: RefCell::default(),
        connections_made: Cell::new(0),
        connections_open: Default::default(),
        listeners: RefCell::default(),
        listeners_open: Cell::new(0),
        dispatcher: Dispatcher::default(),
        draining: Cell::new(false),
        closed: Notify::new(),
        relay: OnceCell::new(),
    });
    NETWORK.set(Some(network.clone()));
    runtime.block_on(network.dispatcher.run(&network.shared.outbox, || network.dispatch()));
    network.dispatcher.clear(&network.shared.outbox);
    upstream::network::leave();
    drop(runtime);
    NETWORK.set(None);
}

/// Ends a pass, after everything that was ready: wakes the loop if it has something to poll.
fn before_sleep() {
    NETWORK.with_borrow(|network| {
        let Some(network) = network else { return };
        network.shared.outbox.announce_sleep(|| network.dispatch());
        network.shared.wakeup.ring();
    });
    upstream::network::before_sleep();
}

/// Calls a function with this thread's relay, if the thread has one.
pub fn with_relay<T>(act: impl FnOnce(&Network, &Relay) -> T) -> Option<T> {
    NETWORK.with_borrow(|network| {
        let network = network.as_ref()?;
        Some(act(network, network.relay.get()?))
    })
}

impl Network {
    /// Applies the loop's commands, or hands them to their connections.
    pub fn dispatch(self: &Rc<Self>) {
        for command in self.shared.outbox.take() {
            match command {
                Command::Expel { connection } => {
                    if let Some(connection) = self.connections.borrow().get(&connection) {
                        connection.expelled.set(true);
                        connection.waker.wake();
                    }
                }
                Command::Resume { connection } => self.to_connection(connection, None),
                Command::Listen(bound) => self.listen(*bound),
                Command::Host(guest) => upstream::network::host(*guest),
                Command::Relay(shared) => {
                    let _ = self.relay.set(Relay::new(shared));
                }
                Command::Drain => self.drain(),
                Command::Stop => self.dispatcher.stop(),
                command => {
                    if let Some(call) = command.call() {
                        self.to_connection(connection_of(call), Some(command));
                    }
                }
            }
        }
    }

    fn to_connection(&self, number: u32, command: Option<Command>) {
        match (self.connections.borrow().get(&number), command) {
            (Some(connection), None) => connection.waker.wake(),
            (Some(connection), Some(command)) => {
                let mut commands = connection.commands.borrow_mut();
                let was_empty = commands.is_empty();
                commands.push_back(command);
                if was_empty {
                    connection.waker.wake();
                }
            }
            // A call that is marked after its connection broke is reported as ended all the same.
            (None, Some(Command::MarkWaiting { call })) => {
                let ended = Event { call, detail: EventDetail::Ended };
                let mut inbox = self.shared.inbox.lock();
                inbox.push(number, Vec::new(), vec![ended]);
                self.shared.wakeup.note();
            }
            (None, _) => {}
        }
    }

    /// Answers a relayed call, which the loop has not seen.
    pub fn answer(&self, call: Call, result: Result<Bytes, (i32, String)>) {
        let number = connection_of(call);
        let command = Command::Reply { call, head: None, result };
        if let Some(connection) = self.connections.borrow().get(&number) {
            self.shared.room.give(&connection.shared.account, command.load());
        }
        self.to_connection(number, Some(command));
    }

    /// Leaves a relayed request to the loop, unless the client is gone.
    pub fn leave_to_loop(&self, request: Unary) {
        let number = connection_of(request.call);
        let Some(connection) = self.connections.borrow().get(&number).cloned() else { return };
        self.put_on(&connection, request.cost());
        self.shared.inbox.lock().push(number, vec![request], Vec::new());
        self.shared.wakeup.note();
    }

    /// Cancels a call at the relay, if it was relayed: its client needs no response any more.
    pub fn forsake(&self, call: Call) {
        if let Some(relay) = self.relay.get() {
            relay.cancel(self, call);
        }
    }

    fn wake_all(&self) {
        for connection in self.connections.borrow().values() {
            connection.waker.wake();
        }
    }

    fn listen(self: &Rc<Self>, bound: BoundSocket) {
        self.listeners_open.set(self.listeners_open.get() + 1);
        let listening = Listening::new(self, &bound);
        let accepting = spawn(listener::accept(self.clone(), bound, listening));
        self.listeners.borrow_mut().push(accepting);
    }

    fn drain(&self) {
        self.draining.set(true);
        self.shared.draining.store(true, Ordering::SeqCst);
        for listener in self.listeners.borrow_mut().drain(..) {
            listener.abort();
        }
        self.wake_all();
        self.note_if_drained();
    }

    /// Counts a listener as closed.
    pub fn forget_listener(&self) {
        self.listeners_open.set(self.listeners_open.get() - 1);
        self.note_if_drained();
    }

    fn note_if_drained(&self) {
        let open: usize = self.connections_open.iter().map(Cell::get).sum();
        let open = open + self.listeners_open.get();
        if self.draining.get() && open == 0 {
            self.shared.drained.store(true, Ordering::SeqCst);
            self.note_drain_news();
        }
    }

    /// Notes that one client fewer may open calls.
    pub fn lose_caller(&self) {
        let before = self.shared.callers.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.draining.get() {
            self.note_drain_news();
        }
    }

    pub fn note_drain_news(&self) {
        self.shared.drain_news.store(true, Ordering::SeqCst);
        self.shared.wakeup.note();
    }

    /// Registers a new client, and starts the task that serves it.
    pub fn serve(self: &Rc<Self>, transport: Transport, origin: Origin) {
        self.connections_made.set(self.connections_made.get().wrapping_add(1));
        let number = self.connections_made.get();
        let shared = Arc::new(ConnectionShared {
            peer: origin.peer,
            certificate: OnceLock::new(),
            flow: Flow::default(),
            account: Account::default(),
            http_calls: AtomicUsize::new(0),
        });
        let connection = Rc::new(Connection {
            number,
            listener: origin.listener,
            tls: origin.tls,
            shared: shared.clone(),
            commands: RefCell::default(),
            waker: TaskWaker::default(),
            expelled: Cell::new(false),
        });
        let open = &self.connections_open[connection.listener.kind];
        open.set(open.get() + 1);
        count(&self.shared.counters.connections_accepted, 1);
        count(&self.shared.counters.connections_open, 1);
        self.shared.inbox.lock().open(number, shared);
        self.connections.borrow_mut().insert(number, connection.clone());
        spawn(connection::serve(self.clone(), connection, transport));
    }

    /// Ends a connection for the loop: later commands for it have no effect.
    pub fn detach(&self, connection: &Connection, commands: impl Iterator<Item = Command>) {
        self.connections.borrow_mut().remove(&connection.number);
        let said = std::mem::take(&mut *connection.commands.borrow_mut());
        for command in commands.chain(said) {
            self.to_connection(connection.number, Some(command));
        }
    }

    /// Removes a connection whose socket is closed from all lists.
    pub fn forget(&self, connection: &Connection) {
        self.detach(connection, std::iter::empty());
        self.shared.inbox.lock().close(connection.number);
        self.shared.queued.fetch_sub(connection.shared.flow.queued(), Ordering::SeqCst);
        self.shared.room.close(&self.shared, &connection.shared.account);
        uncount(&self.shared.counters.connections_open, 1);
        let open = &self.connections_open[connection.listener.kind];
        open.set(open.get() - 1);
        // Notify all listeners, since each waits for connections of its own kind.
        self.closed.notify_waiters();
        self.note_if_drained();
    }

    /// Records an incident: a client was refused or delayed.
    pub fn note(&self, kind: Incident, connection: &Connection, text: impl Into<String>) {
        let peer = &connection.shared.peer;
        self.shared.incidents.note(kind, connection.listener.number, peer, text.into());
    }

    /// Counts bytes that wait for the loop.
    pub fn put_on(&self, connection: &Connection, bytes: usize) {
        connection.shared.flow.add(bytes);
        self.shared.queued.fetch_add(bytes, Ordering::SeqCst);
    }

    pub fn connections_open(&self, kind: usize) -> usize {
        self.connections_open[kind].get()
    }
}
