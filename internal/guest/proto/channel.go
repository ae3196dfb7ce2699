package proto

import (
	"encoding/json"
	"errors"
	"sync"
)

// Channel carries one request: its answer, its streams and what becomes of it.
type Channel struct {
	conn *Conn
	id   uint32

	text  []byte // the guest's side: the request so far
	asked bool

	in  [Streams]*Reader // streams towards this side that the request has; nil for the others
	out [Streams]*Writer // streams from this side

	mu       sync.Mutex
	reply    *Reply
	exit     *Exit
	seq      uint32 // of the last control
	answers  map[uint32]chan Answer
	replied  chan struct{} // closed with reply, or when the channel is aborted
	exited   chan struct{} // closed with exit, likewise
	ended    chan struct{} // closed when the channel is over
	isEnded  bool
	control  func(Control) // guest's side
	controls []Control     // that came before Handle
	wants    bool          // controls are being handled
}

// maxControls bounds the controls that wait for an answer.
const maxControls = 256

// ErrEnded means that the channel, or the whole stream, is over.
var ErrEnded = errors.New("the stream to the guest has ended")

// newChannel returns a channel. Of the streams towards this side, it takes those that takes
// names: bytes on another one are a breach.
func newChannel(c *Conn, id uint32, takes ...int) *Channel {
	ch := &Channel{
		conn: c, id: id, answers: map[uint32]chan Answer{},
		replied: make(chan struct{}), exited: make(chan struct{}), ended: make(chan struct{}),
	}
	for s := range Streams {
		if (s == In) == c.host {
			ch.out[s] = newWriter(ch, uint8(s))
		}
	}
	for _, s := range takes {
		ch.in[s] = newReader(ch, uint8(s))
	}
	return ch
}

// Reader returns the end of a stream towards this side, nil if the request has none.
func (ch *Channel) Reader(stream int) *Reader { return ch.in[stream] }

// Writer returns the end of a stream from this side.
func (ch *Channel) Writer(stream int) *Writer { return ch.out[stream] }

// Replied is closed when the reply has come or cannot come any more.
func (ch *Channel) Replied() <-chan struct{} { return ch.replied }

// Reply returns the reply, or ErrEnded. Call it after Replied.
func (ch *Channel) Reply() (Reply, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.reply == nil {
		return Reply{}, ErrEnded
	}
	return *ch.reply, nil
}

// Exited is closed when the command's end is known, or the channel has ended.
func (ch *Channel) Exited() <-chan struct{} { return ch.exited }

// Exit returns how the command ended, or ErrEnded. Call it after Exited.
func (ch *Channel) Exit() (Exit, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.exit == nil {
		return Exit{}, ErrEnded
	}
	return *ch.exit, nil
}

// Ended is closed when the channel is over.
func (ch *Channel) Ended() <-chan struct{} { return ch.ended }

// Control asks for a change of what runs on the channel and waits for the answer.
func (ch *Channel) Control(c Control) (Answer, error) {
	got := make(chan Answer, 1)
	ch.mu.Lock()
	if ch.isEnded || ch.exit != nil {
		ch.mu.Unlock()
		return Answer{}, ErrEnded
	}
	if len(ch.answers) >= maxControls {
		ch.mu.Unlock()
		return Answer{}, errors.New("too many signals wait for an answer")
	}
	ch.seq++
	c.Seq = ch.seq
	ch.answers[c.Seq] = got
	ch.mu.Unlock()
	if err := ch.conn.sendJSON(kindControl, ch.id, c); err != nil {
		return Answer{}, err
	}
	select {
	case a := <-got:
		return a, nil
	case <-ch.ended:
		select {
		case a := <-got:
			return a, nil
		default:
			return Answer{}, ErrEnded
		}
	}
}

// take handles one frame of the other side.
func (ch *Channel) take(f *frame) error {
	switch f.kind {
	case kindData:
		if r := ch.in[f.stream]; r != nil {
			return r.push(f.payload)
		}
	case kindEOF:
		if r := ch.in[f.stream]; r != nil && len(f.payload) == 0 {
			return r.finish()
		}
	case kindCredit:
		if w := ch.out[f.stream]; w != nil && len(f.payload) == 4 {
			return w.credit(f.payload)
		}
	case kindStop:
		if w := ch.out[f.stream]; w != nil && len(f.payload) == 0 {
			w.stop()
			return nil
		}
	case kindControl:
		return ch.takeControl(f.payload)
	case kindReply:
		return ch.takeReply(f.payload)
	case kindAnswer:
		return ch.takeAnswer(f.payload)
	case kindExit:
		return ch.takeExit(f.payload)
	case kindEnd:
		ch.mu.Lock()
		early := ch.reply == nil
		ch.mu.Unlock()
		if early || len(f.payload) > 0 {
			return breach("channel %d ends before its reply", ch.id)
		}
		ch.conn.forget(ch)
		ch.over()
		return nil
	}
	return breach("frame of kind %d with %d bytes on stream %d", f.kind, len(f.payload), f.stream)
}

func (ch *Channel) takeReply(b []byte) error {
	var r Reply
	if err := json.Unmarshal(b, &r); err != nil {
		return breach("reply: %v", err)
	}
	if r.Stats != nil {
		if err := r.Stats.Check(); err != nil {
			return err
		}
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.reply != nil {
		return breach("a second reply on channel %d", ch.id)
	}
	ch.reply = &r
	close(ch.replied)
	return nil
}

func (ch *Channel) takeExit(b []byte) error {
	var e Exit
	if err := json.Unmarshal(b, &e); err != nil {
		return breach("exit: %v", err)
	}
	if err := e.Check(); err != nil {
		return err
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.exit != nil || ch.reply == nil || ch.reply.Error != "" {
		return breach("channel %d has no command that could exit", ch.id)
	}
	ch.exit = &e
	close(ch.exited)
	return nil
}

func (ch *Channel) takeAnswer(b []byte) error {
	var a Answer
	if err := json.Unmarshal(b, &a); err != nil {
		return breach("answer: %v", err)
	}
	ch.mu.Lock()
	got := ch.answers[a.Seq]
	delete(ch.answers, a.Seq)
	ch.mu.Unlock()
	if got == nil {
		return breach("an answer to nothing on channel %d", ch.id)
	}
	got <- a
	return nil
}

func (ch *Channel) takeControl(b []byte) error {
	var c Control
	if err := json.Unmarshal(b, &c); err != nil {
		return breach("control: %v", err)
	}
	ch.mu.Lock()
	f := ch.control
	if !ch.wants {
		if len(ch.controls) >= maxControls {
			ch.mu.Unlock()
			return breach("too many controls")
		}
		ch.controls = append(ch.controls, c)
		f = nil
	}
	ch.mu.Unlock()
	if f != nil {
		f(c)
	}
	return nil
}

// Handle sets what is called for each control, on the guest's side; those that came
// before are handled now. f must return soon.
func (ch *Channel) Handle(f func(Control)) {
	ch.mu.Lock()
	early := ch.controls
	ch.controls, ch.control = nil, f
	ch.wants = true
	ch.mu.Unlock()
	for _, c := range early {
		f(c)
	}
}

// SendReply, SendAnswer, SendExit and End are the guest's side. Errors mean that the
// stream has ended.
func (ch *Channel) SendReply(r Reply) error {
	const room = 4 << 10 // JSON can make it six times as long
	if len(r.Error) > room {
		r.Error = r.Error[:room]
	}
	return ch.conn.sendJSON(kindReply, ch.id, r)
}

// SendAnswer answers a control.
func (ch *Channel) SendAnswer(a Answer) error { return ch.conn.sendJSON(kindAnswer, ch.id, a) }

// SendExit says how the command ended.
func (ch *Channel) SendExit(e Exit) error { return ch.conn.sendJSON(kindExit, ch.id, e) }

// End sends the channel's last frame and forgets the channel.
func (ch *Channel) End() error {
	err := ch.conn.send(&frame{kind: kindEnd, channel: ch.id})
	ch.conn.forget(ch)
	ch.over()
	return err
}

// over ends the channel in order: what has arrived can still be read.
func (ch *Channel) over() { ch.end(func(r *Reader) { _ = r.finish() }) }

// abort ends the channel because the stream has ended.
func (ch *Channel) abort() { ch.end((*Reader).abort) }

func (ch *Channel) end(reader func(*Reader)) {
	ch.mu.Lock()
	if ch.isEnded {
		ch.mu.Unlock()
		return
	}
	ch.isEnded = true
	if ch.reply == nil {
		close(ch.replied)
	}
	if ch.exit == nil {
		close(ch.exited)
	}
	ch.mu.Unlock()
	for s := range Streams {
		if r := ch.in[s]; r != nil {
			reader(r)
		}
		if w := ch.out[s]; w != nil {
			w.stop()
		}
	}
	close(ch.ended)
}
