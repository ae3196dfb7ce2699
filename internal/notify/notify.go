// Package notify shows notifications on the user's desktop, with the Desktop Notifications
// Specification 1.2 over the session's D-Bus. It starts no program.
package notify

import (
	"context"
	"errors"
	"fmt"
	"html"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/godbus/dbus/v5"
)

const (
	service = "org.freedesktop.Notifications"
	object  = dbus.ObjectPath("/org/freedesktop/Notifications")

	// answersIn bounds the wait for the answer to one message.
	answersIn = 5 * time.Second

	// maxText bounds a summary and a body, in bytes.
	maxText = 500
)

// errNoDesktop means that the session has no D-Bus.
var errNoDesktop = errors.New("this session has no desktop to notify: DBUS_SESSION_BUS_ADDRESS is not set")

// Desktop is a connection to the notification server. Its methods may be called by several
// goroutines at once.
type Desktop struct {
	conn   *dbus.Conn
	markup bool // the server interprets markup in the body

	mu   sync.Mutex
	last uint32 // id of the notification that the next one replaces; 0 for none
}

// Open connects to the session's bus at address, the value of DBUS_SESSION_BUS_ADDRESS. It
// tries only Unix sockets, because other transports of D-Bus start programs or connect to
// other machines. The error is ErrNoDesktop if address is empty, another one if there is no
// notification server.
func Open(ctx context.Context, address string) (*Desktop, error) {
	if address == "" {
		return nil, errNoDesktop
	}
	var sockets []string
	for a := range strings.SplitSeq(address, ";") {
		if strings.HasPrefix(a, "unix:path=") || strings.HasPrefix(a, "unix:abstract=") {
			sockets = append(sockets, a)
		}
	}
	if len(sockets) == 0 {
		return nil, fmt.Errorf("the session's D-Bus is not at a Unix socket: DBUS_SESSION_BUS_ADDRESS=%.200q", address)
	}
	conn, err := dbus.Connect(strings.Join(sockets, ";"))
	if err != nil {
		return nil, fmt.Errorf("connect to the session's D-Bus: %w", err)
	}
	d := &Desktop{conn: conn}
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	var can []string
	if err := d.call(ctx, "GetCapabilities").Store(&can); err != nil {
		conn.Close()
		return nil, fmt.Errorf("nothing on the session's D-Bus shows notifications: %w", err)
	}
	d.markup = slices.Contains(can, "body-markup")
	return d, nil
}

// Show shows a notification with a summary and a body, both plain text; it cuts them to
// MaxText bytes each. It replaces the notification of the previous call.
func (d *Desktop) Show(ctx context.Context, summary, body string) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	summary, body = cut(summary), cut(body)
	if d.markup {
		body = html.EscapeString(body)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	hints := map[string]dbus.Variant{"category": dbus.MakeVariant("presence"), "urgency": dbus.MakeVariant(byte(1))}
	if err := d.call(ctx, "Notify", "carboy", d.last, "", summary, body, []string{}, hints, int32(-1)).Store(&d.last); err != nil {
		return fmt.Errorf("notify the desktop: %w", err)
	}
	return nil
}

// Close closes the connection. The notification stays visible.
func (d *Desktop) Close() error { return d.conn.Close() }

// call calls a method of the notification server without auto-starting it.
func (d *Desktop) call(ctx context.Context, method string, args ...any) *dbus.Call {
	return d.conn.Object(service, object).CallWithContext(ctx, service+"."+method, dbus.FlagNoAutoStart, args...)
}

func cut(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText-len("…")]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}
