package attacker

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// message holds one request to write by hand.
type message struct {
	method, target string
	head           []string // lines
	body           string
	chunks         []string // instead of a body; the last, empty one is added
	trailer        []string // lines, after chunks
	raw            string   // of the body, as it is, instead of both
	again          bool     // it is sent twice
}

// Mark is the header that identifies a request to the host's servers: the attack, the way,
// the request's number and the number of requests.
const Mark = "X-Carboy-Attack"

func markOf(id, way string, i, n int) string { return fmt.Sprintf("%s|%s|%d|%d", id, way, i, n) }

// text returns the message in the form of HTTP/1.1.
func (m *message) text(host, mark string) string {
	var b strings.Builder
	method, target := m.method, m.target
	if method == "" {
		method = "POST"
	}
	if target == "" {
		target = "/v1/in"
	}
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, target, host)
	if mark != "" {
		fmt.Fprintf(&b, "%s: %s\r\n", Mark, mark)
	}
	for _, h := range m.head {
		b.WriteString(h + "\r\n")
	}
	switch {
	case m.raw != "":
		b.WriteString("\r\n" + m.raw)
	case m.chunks != nil:
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for _, c := range m.chunks {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(c), c)
		}
		b.WriteString("0\r\n")
		for _, t := range m.trailer {
			b.WriteString(t + "\r\n")
		}
		b.WriteString("\r\n")
	case m.body != "" || method == "POST" || method == "PUT":
		b.WriteString("Content-Length: " + strconv.Itoa(len(m.body)) + "\r\n\r\n" + m.body)
	default:
		b.WriteString("\r\n")
	}
	return b.String()
}

// answer holds a whole answer.
type answer struct {
	status int
	header http.Header
	early  string // answers before the last
	body   string
	cut    error // why the body is not whole
	tail   http.Header
}

// everything returns the answer as one text, to search in.
func (a *answer) everything() string {
	return fmt.Sprint(a.early, a.header, "\n", a.body, "\n", a.tail)
}

// speaker is a client of one host that keeps its connection if it can.
type speaker struct {
	addr, name string // host:port, and the server's name
	plain      bool
	conn       net.Conn
	br         *bufio.Reader
}

func speakTo(addr string) *speaker { return &speaker{addr: addr, name: hostOf(addr)} }

func (s *speaker) close() {
	if s.conn != nil {
		// TLS would wait for seconds to say goodbye to who does not read.
		if t, ok := s.conn.(*tls.Conn); ok {
			t.NetConn().Close()
		}
		s.conn.Close()
		s.conn = nil
	}
}

func (s *speaker) connect() error {
	if s.conn != nil {
		return nil
	}
	c, err := net.DialTimeout("tcp", s.addr, netPatience)
	if err != nil {
		return slow(err)
	}
	if !s.plain {
		// Whose certificate it shows is not what is looked at here.
		c = tls.Client(c, &tls.Config{ServerName: s.name, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	}
	s.conn, s.br = c, bufio.NewReader(c)
	return nil
}

// say sends a text and reads the answer to it.
func (s *speaker) say(method, text string) (*answer, error) {
	if err := s.connect(); err != nil {
		return nil, err
	}
	s.conn.SetDeadline(time.Now().Add(netPatience))
	// The answer may come before all was sent, and then the rest is not wanted.
	sent := make(chan error, 1)
	go func(c net.Conn) { // ends with the connection, or its deadline
		_, err := io.WriteString(c, text)
		sent <- err
	}(s.conn)
	a, err := s.answer(method)
	if err != nil || a.cut != nil || a.header.Get("Connection") == "close" {
		s.close()
	}
	<-sent
	return a, slow(err)
}

func (s *speaker) answer(method string) (*answer, error) {
	a := &answer{}
	for {
		res, err := http.ReadResponse(s.br, &http.Request{Method: method})
		if err != nil {
			return nil, err
		}
		if res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
			a.early += fmt.Sprint(res.StatusCode, res.Header)
			continue
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		a.status, a.header, a.body, a.cut, a.tail = res.StatusCode, res.Header, string(b), err, res.Trailer
		if res.Close {
			a.header.Set("Connection", "close")
		}
		return a, nil
	}
}

// send sends a message. It returns an error with the reason for an answer other than 200.
func (s *speaker) send(m *message, mark string) (*answer, error) {
	method := m.method
	if method == "" {
		method = "POST"
	}
	a, err := s.say(method, m.text(s.addr, mark))
	switch {
	case err != nil:
		return nil, err
	case a.cut != nil:
		return a, slow(a.cut)
	case a.status != 200:
		return a, fmt.Errorf("status %d %s", a.status, a.header.Get("Carboy-Refused"))
	}
	return a, nil
}

// client2 returns a client that speaks HTTP/2 inside TLS.
func client2() *http.Client {
	var p http.Protocols
	p.SetHTTP2(true)
	return &http.Client{
		Transport:     &http.Transport{Protocols: &p, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		Timeout:       netPatience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send2 sends a message by HTTP/2.
func send2(c *http.Client, addr string, m *message, mark string) (*answer, error) {
	method, target := m.method, m.target
	if method == "" {
		method = "POST"
	}
	if target == "" {
		target = "/v1/in"
	}
	var body io.Reader
	if m.chunks != nil {
		body = io.MultiReader(strings.NewReader(strings.Join(m.chunks, ""))) // its length is not told
	} else if m.body != "" {
		body = strings.NewReader(m.body)
	}
	r, err := http.NewRequest(method, "https://"+addr+target, body)
	if err != nil {
		return nil, cannot("%v", err)
	}
	r.Header.Set(Mark, mark)
	for _, h := range m.head {
		k, v, _ := strings.Cut(h, ": ")
		switch k {
		case "Host":
			r.Host = v
		case "Trailer":
		default:
			r.Header.Add(k, v)
		}
	}
	for _, t := range m.trailer {
		k, v, _ := strings.Cut(t, ": ")
		if r.Trailer == nil {
			r.Trailer = http.Header{}
		}
		r.Trailer.Add(k, v)
	}
	res, err := c.Do(r)
	if err != nil {
		return nil, slow(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	a := &answer{status: res.StatusCode, header: res.Header, body: string(b), cut: err, tail: res.Trailer}
	switch {
	case res.ProtoMajor != 2:
		return a, cannot("it is not HTTP/2")
	case err != nil:
		return a, slow(err)
	case a.status != 200:
		return a, fmt.Errorf("status %d %s", a.status, a.header.Get("Carboy-Refused"))
	}
	return a, nil
}
