package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// insideArg makes this program the one that runs the load, within whatever the
// peer puts around it, and measures the load alone.
const insideArg = "-inside"

// insideMark starts the line with which it reports, in nanoseconds.
const insideMark = "bench-inside-ns "

// inside runs a load and prints its duration by the clock inside.
func inside(argv []string) int {
	if len(argv) == 0 {
		return 2
	}
	start := time.Now()
	err := perform(argv)
	took := time.Since(start)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%s%d\n", insideMark, took.Nanoseconds())
	return 0
}

func perform(argv []string) error {
	switch argv[0] {
	case "get":
		return get(argv[1])
	case "put":
		return put(argv[1], argv[2])
	case "connect":
		return connect(argv[1], argv[2])
	case "ask":
		return ask(argv[1], argv[2])
	}
	c := exec.Command(argv[0], argv[1:]...)
	c.Stderr = os.Stderr
	return c.Run()
}

func get(url string) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 256<<10))
	if err == nil && (r.StatusCode != http.StatusOK || n != r.ContentLength) {
		err = fmt.Errorf("get %s: %s, %d of %d bytes", url, r.Status, n, r.ContentLength)
	}
	return err
}

func put(url, size string) error {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	q, err := http.NewRequest(http.MethodPut, url, io.LimitReader(zeros{}, n))
	if err != nil {
		return err
	}
	q.ContentLength = n
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(io.LimitReader(r.Body, 100))
	if err == nil && string(got) != size {
		err = fmt.Errorf("put %s: %s, the server got %q bytes of %s", url, r.Status, got, size)
	}
	return err
}

// connect makes n connections to addr, one after the other, each for one small
// request that the server ends. The name is looked up once.
func connect(addr, n string) error {
	count, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return err
	}
	request := "GET /small HTTP/1.0\r\nHost: " + addr + "\r\n\r\n"
	for range count {
		if err := oneRequest(to.String(), request); err != nil {
			return fmt.Errorf("connect %s: %w", addr, err)
		}
	}
	return nil
}

func oneRequest(addr, request string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	got, err := io.ReadAll(io.LimitReader(c, 64<<10))
	if err == nil && !strings.HasSuffix(string(got), smallBody) {
		err = fmt.Errorf("got %.300q", got)
	}
	return err
}

// ask makes n small requests on one connection.
func ask(url, n string) error {
	count, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	for range count {
		r, err := http.Get(url)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
		r.Body.Close()
		if err != nil {
			return err
		}
		if string(got) != smallBody {
			return fmt.Errorf("ask %s: %s, %.300q", url, r.Status, got)
		}
	}
	return nil
}

// zeros returns zero bytes to every read.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// insideTime returns the duration in a load's output; 0 if there is none.
func insideTime(out string) time.Duration {
	_, rest, ok := strings.Cut(out, insideMark)
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if !ok || err != nil || n < 0 {
		return 0
	}
	return time.Duration(n)
}
