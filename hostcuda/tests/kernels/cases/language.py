"""C++ in kernels: recursion, function pointers, virtual functions, templates, lambdas, printf.

Source: CUDA C++ Programming Guide, "C++ Language Support" and "Formatted Output" (printf returns the
number of its arguments; -1 for a null format); the C++ standard.
"""

from . import Kernel, L, f4, f8, i4, i8, np, u4, u8


def _structured(t):
    """Do what `structured_code` does."""
    total, n = 0, 0
    while True:
        if n % 4 == 3:
            n += 1
            continue
        total += {0: 11, 1: 10, 2: 100}[n % 4]
        if n > t:
            return total
        n += 1


KERNELS = {
    "recursion": Kernel(
        "o[t] = fibonacci(t % 12);",
        i4([[0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89][n % 12] for n in range(32)]),
        before="""__device__ __noinline__ int fibonacci(int n) {
            return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
        }""",
    ),
    "mutual_recursion": Kernel(
        "o[t] = even(t);",
        i4(L % 2 == 0),
        before="""__device__ bool odd(int n);
        __device__ __noinline__ bool even(int n) { return n ? odd(n - 1) : true; }
        __device__ __noinline__ bool odd(int n) { return n ? even(n - 1) : false; }""",
    ),
    "recursion_with_arrays": Kernel(
        "int x[8]; o[t] = f(x, 0, t);",
        i4([sum((lane + n) % 5 for n in range(8)) for lane in range(32)]),
        before="""__device__ __noinline__ int f(int *x, int n, int t) {
            if (n == 8) { int s = 0; for (int m = 0; m < 8; m++) s += x[m]; return s; }
            x[n] = (t + n) % 5;
            return f(x, n + 1, t);
        }""",
    ),
    "function_pointers": Kernel(
        "int (*f[3])(int, int) = {add, mul, sub}; o[t] = f[t % 3](t, 5);",
        i4([(n + 5, n * 5, n - 5)[n % 3] for n in range(32)]),
        before="""__device__ int add(int x, int y) { return x + y; }
        __device__ int mul(int x, int y) { return x * y; }
        __device__ int sub(int x, int y) { return x - y; }""",
    ),
    "function_pointers_in_a_table": Kernel(
        "o[t] = table[a[t]](t * 1.f);",
        f4(np.where(L % 2, L * L, L + 0.5)),
        inputs=(i4(L % 2),),
        before="""__device__ float half(float x) { return x + 0.5f; }
        __device__ float square(float x) { return x * x; }
        __device__ float (*table[2])(float) = {half, square};""",
    ),
    "function_pointers_with_warp_functions": Kernel(
        "int (*f)(int) = t < 16 ? low : high; o[t] = f(t);",
        i4(np.where(L < 16, 0, 31)),
        before="""__device__ __noinline__ int low(int n) { return __shfl_sync(0xffff, n, 0); }
        __device__ __noinline__ int high(int n) { return __shfl_sync(0xffff0000, n, 31); }""",
    ),
    "virtual_functions": Kernel(
        """Square s; s.a = t; Circle c; c.r = t;
        Shape *p = t % 2 ? (Shape *)&s : (Shape *)&c;
        o[t] = p->area() + p->twice();""",
        f8(np.where(L % 2, L * L + 2 * L * L, 3 * L + 6 * L)),
        before="""struct Shape {
            __device__ virtual double area() const = 0;
            __device__ virtual double twice() const { return 2 * area(); }
        };
        struct Square : Shape { double a; __device__ double area() const override { return a * a; } };
        struct Circle : Shape { double r; __device__ double area() const override { return 3 * r; } };""",
    ),
    "virtual_functions_from_the_heap": Kernel(
        """Base *p = t % 3 ? new Base : new Derived(t);
        o[t] = p->get();
        delete p;""",
        i4(np.where(L % 3, 1, L * 10)),
        before="""struct Base {
            __device__ virtual int get() { return 1; }
            __device__ virtual ~Base() {}
        };
        struct Derived : Base {
            int n;
            __device__ Derived(int n) : n(n) {}
            __device__ int get() override { return n * 10; }
        };""",
    ),
    "templates": Kernel(
        "o[t] = Sum<10>::of + power<3>(t) + (long long)largest(t, 7) + sum(1, 2.5, 3.f);",
        i8(55 + L**3 + np.maximum(L, 7) + 6),
        before="""template <int N> struct Sum { enum { of = N + Sum<N - 1>::of }; };
        template <> struct Sum<0> { enum { of = 0 }; };
        template <int N> __device__ int power(int x) { if constexpr (N > 1) return x * power<N - 1>(x); return x; }
        template <class T> __device__ T largest(T x, T y) { return x > y ? x : y; }
        template <class... T> __device__ double sum(T... x) { return (x + ...); }""",
    ),
    "lambdas": Kernel(
        """int n = t;
        auto by_value = [=](int x) { return x + n; };
        auto by_reference = [&](int x) { n += x; return n; };
        o[t] = by_reference(5) + by_value(100) + apply([](int x) { return x * x; }, 3);""",
        i4(2 * L + 114),
        before="template <class F> __device__ int apply(F f, int x) { return f(x); }",
    ),
    "operators_and_constructors": Kernel(
        "V x(t, 1), y{2, 3}; V z = x * y + x; o[t] = z.re * 100 + z.im;",
        i4((2 * L - 3 + L) * 100 + 3 * L + 2 + 1),
        before="""struct V {
            int re, im;
            __device__ V(int r, int i) : re(r), im(i) {}
            __device__ V operator*(V w) const { return V(re * w.re - im * w.im, re * w.im + im * w.re); }
            __device__ V operator+(V w) const { return V(re + w.re, im + w.im); }
        };""",
    ),
    "structured_code": Kernel(
        """int sum = 0;
        for (int n = 0;; n++) {
            switch (n % 4) { case 0: sum += 1; case 1: sum += 10; break; case 3: continue; default: sum += 100; }
            if (n > t) goto end;
        }
        end: o[t] = sum;""",
        i4([_structured(lane) for lane in range(32)]),
    ),
    "short_circuits": Kernel(
        "int n = 0; bool p = t && ++n, q = t || (n += 10); o[t] = n + 100 * p + 1000 * q;",
        i4(np.where(L, 1101, 1010)),
    ),
    "static_arrays": Kernel(
        "static const int x[] = {5, 6, 7}; constexpr float y[] = {.5f, .25f}; o[t] = x[t % 3] + y[t & 1];",
        f4(5 + L % 3 + np.where(L & 1, 0.25, 0.5)),
    ),
    "long_and_size_t": Kernel(
        "o[0] = sizeof(long) + sizeof(size_t) * 10; size_t n = -1; o[1] = n; o[2] = (long)1 << 40;",
        u8([88, 2**64 - 1, 1 << 40]),
        block=1,
    ),
    "strings": Kernel(
        """const char *s = "a __global__ b"; int n = 0;
        while (s[n]) n++;
        o[0] = n; o[1] = s[2]; o[2] = sizeof("__shared__") + sizeof(u8"\\u00e9");""",
        i4([14, ord("_"), 14]),
        block=1,
    ),
    "printf_returns": Kernel(
        """o[0] = printf("%d %d\\n", 1, 2); o[1] = printf("x\\n"); o[2] = printf("%s %f %c\\n", "y", 1., 'z');""",
        i4([2, 0, 3]),
        block=1,
        prints="1 2\nx\ny 1.000000 z\n",
    ),
    "printf_formats": Kernel(
        """printf("%d %u %x %08X|%5d|%-5d|%+d\\n", -1, 7u, 255, 0xabc, 42, 42, 42);
        printf("%lld %llu %llx %ld\\n", -(1ll << 40), ~0ull, 1ull << 36, -5l);
        printf("%f %.3f %e %g|%8.2f|%.0f\\n", 0.5, 2. / 3, 12345.678, 1e-10, 3.14159, 2.5);
        printf("%c%c %s %% %5s|\\n", 'o', 'k', "text", "ab");
        printf("%f %d\\n", 1.5f, (char)-3);
        o[0] = 1;""",
        i4([1]),
        block=1,
        prints="-1 7 ff 00000ABC|   42|42   |+42\n-1099511627776 18446744073709551615 1000000000 -5\n"
        "0.500000 0.667 1.234568e+04 1e-10|    3.14|2\nok text %    ab|\n1.500000 -3\n",
    ),
    "printf_of_a_loop": Kernel(
        """for (int n = 0; n < 3; n++) printf("%d:%d ", n, n * n);
        printf("\\n"); o[0] = 0;""",
        i4([0]),
        block=1,
        prints="0:0 1:1 2:4 \n",
    ),
    "assert_that_holds": Kernel('assert(t < 32 && "a lane"); o[t] = t;', i4(L)),
    "unsigned_loops": Kernel(
        "unsigned sum = 0; for (unsigned n = 10; n-- > 0;) sum += n * t; o[t] = sum;", u4(45 * L)
    ),
    "type_limits": Kernel(
        "o[t] = (unsigned char)~0 + (short)0x8000 + (1 << 31 >> 31) + ('\\xff' < 0);",
        i4([255 - 32768 - 1 + 1]),
        block=1,
    ),
    "launch_bounds": Kernel(
        "o[t] = blockDim.x;", i4([64] * 64), block=64, bounds="__launch_bounds__(64, 2)"
    ),
    "scalar_arguments": Kernel(
        "o[0] = (double)a + b + c + d;",
        f8([1.5 + 2**40 - 3 + 200]),
        inputs=(np.float32(1.5), np.int64(2**40), np.int16(-3), np.uint8(200)),
        block=1,
    ),
    "padding_of_structs": Kernel(
        """o[0] = sizeof(A) * 100 + offsetof(A, d); o[1] = sizeof(B) * 100 + offsetof(B, d); o[2] = sizeof(C) + alignof(C) * 100;
        o[3] = sizeof(D); A x[2] = {{'a', 1.5, 3}, {'b', 2.5, 4}}; o[4] = (char *)&x[1].s - (char *)x;""",
        i4([2408, 1101, 32 + 3200, 8, 24 + 16]),
        block=1,
        headers="#define offsetof(T, m) ((unsigned long long)&((T *)0)->m)\n",
        before="""struct A { char c; double d; short s; };
        #pragma pack(push, 1)
        struct B { char c; double d; short s; };
        #pragma pack(pop)
        struct __align__(32) C { float x[3]; };
        struct D { int n : 4; int m : 30; };""",
    ),
    "unions_and_bits": Kernel(
        """union { float f; unsigned u; struct { unsigned fraction : 23, exponent : 8, sign : 1; } bits; } x;
        x.f = a[t]; x.bits.exponent += 1; x.bits.sign ^= 1;
        o[t] = x.f;""",
        f4([-2, 3, -0.2 * np.float32(1)]),
        inputs=(f4([1, -1.5, 0.1]),),
        block=3,
    ),
    "pointers_to_members": Kernel(
        """P p{t, 10}; int P::*field = t % 2 ? &P::x : &P::y; int (P::*f)(int) const = t < 4 ? &P::add : &P::times;
        o[t] = p.*field + 1000 * (p.*f)(3);""",
        i4([(n if n % 2 else 10) + 1000 * (n + 13 if n < 4 else n * 30) for n in range(8)]),
        block=8,
        before="""struct P {
            int x, y;
            __device__ int add(int n) const { return x + y + n; }
            __device__ int times(int n) const { return x * y * n; }
        };""",
    ),
    "base_classes": Kernel(
        "Child<float> c(t); Parent<float> &p = c; o[t] = p.value() + c.Counter::n + static_cast<Child<float> &>(p).twice;",
        f4(L + 0.5 + 7 + 2 * L),
        before="""template <class T> struct Parent { T x; __device__ Parent(T y) : x(y) {} __device__ T value() const { return x + T(.5); } };
        struct Counter { int n = 7; };
        template <class T> struct Child : Parent<T>, Counter { T twice; __device__ Child(T y) : Parent<T>(y), twice(2 * y) {} };""",
    ),
    "constructors_and_destructors": Kernel(
        """int log = 0;
        { Guard p(log, 1); { Guard q(log, 2); if (t) Guard r(log, 3); } }
        o[t] = log;""",
        i4([1221, 123321, 123321]),
        block=3,
        before="""struct Guard {
            int &log, n;
            __device__ Guard(int &l, int m) : log(l), n(m) { log = log * 10 + n; }
            __device__ ~Guard() { log = log * 10 + n; }
        };""",
    ),
    "templates_of_values_and_types": Kernel(
        """o[0] = Rank<int ***>::of + 10 * Same<int, int>::of + 100 * Same<int, long>::of; o[1] = dot(V<int, 3>{{1, 2, 3}}, V<int, 3>{{4, 5, 6}});
        o[2] = each<1, 2, 3, 4>(t); o[3] = twice<twice<increment>>(5);""",
        i4([13, 32, 1 + 4 + 9 + 16, 9]),
        block=1,
        before="""template <class T> struct Rank { enum { of = 0 }; };
        template <class T> struct Rank<T *> { enum { of = 1 + Rank<T>::of }; };
        template <class, class> struct Same { enum { of = 0 }; };
        template <class T> struct Same<T, T> { enum { of = 1 }; };
        template <class T, int N> struct V { T x[N]; };
        template <class T, int N> __device__ T dot(V<T, N> p, V<T, N> q) { T s = 0; for (int n = 0; n < N; n++) s += p.x[n] * q.x[n]; return s; }
        template <int... N> __device__ int each(int t) { return t + ((N * N) + ...); }
        __device__ int increment(int x) { return x + 1; }
        template <int (*F)(int)> __device__ int twice(int x) { return F(F(x)); }""",
    ),
    "lambdas_with_a_state": Kernel(
        """int calls = 0;
        auto count = [&calls, step = t % 3]() mutable { calls += step++; return step; };
        auto copy = count;
        auto adder = [](int n) { return [n](int m) { return n + m; }; };
        int r = count(); r += 10 * count(); r += 100 * calls; r += 1000 * copy(); r += 10000 * calls;
        o[t] = r + 100000 * adder(t)(5);""",
        i4(
            [
                (k + 1)
                + 10 * (k + 2)
                + 100 * (2 * k + 1)
                + 1000 * (k + 1)
                + 10000 * (3 * k + 1)
                + 100000 * (n + 5)
                for n in range(16)
                for k in [n % 3]
            ]
        ),
        block=16,
    ),
    "ackermann": Kernel(
        "o[t] = ackermann(2, t);",
        i4([2 * n + 3 for n in range(6)]),
        block=6,
        before="__device__ int ackermann(int m, int n) { return !m ? n + 1 : ackermann(m - 1, n ? ackermann(m, n - 1) : 1); }",
    ),
    "switch_of_many_cases": Kernel(
        """int r = 0;
        for (int n = 0; n < 12; n++)
            switch (a[n] + t) {
                case 0: r += 1; break; case 1: r ^= 2; break; case 2: r *= 3; break; case 3: r -= 4; break;
                case 4: case 5: r += 50; break; case 6: r |= 64; [[fallthrough]]; case 7: r += 7; break;
                case 100: r = -r; break; default: r++;
            }
        o[t] = r;""",
        # 1, 3, 9, 5, 55, 105, 105 | 64 + 7 = 112, 119, -119, -118, -117, -116
        i4([-116]),
        inputs=(i4([0, 1, 2, 3, 4, 5, 6, 7, 100, 8, -1, 99]),),
        block=1,
    ),
    "printf_of_widths": Kernel(
        """printf("[%*d][%-*d][%.2f]\\n", 6, 42, 6, 42, 3.14159);
        printf("[%08.3f][%+e][% d][%#x][%#o]\\n", -3.14159, 12345.678, 5, 255, 8);
        printf("[%hd][%i][%o][%X][%G]\\n", -7, 9, 8, 48879, 1e-10);
        printf("[%10s][%-10s][%.2s][%%]\\n", "right", "left", "cut");
        o[0] = printf("%c%c", 65, 66); printf("\\n");""",
        i4([2]),
        block=1,
        prints="[    42][42    ][3.14]\n[-003.142][+1.234568e+04][ 5][0xff][010]\n"
        "[-7][9][10][BEEF][1E-10]\n[     right][left      ][cu][%]\nAB\n",
    ),
    "printf_of_special_numbers": Kernel(
        """float z = t; printf("%f %f %f %d\\n", 1 / z, -1 / z, z * -1, INT_MIN); printf("%5.1f|%-8g|%a\\n", 2.25, .0001, 1.);
        o[0] = 0;""",
        i4([0]),
        block=1,
        headers="#define INT_MIN (-2147483647 - 1)\n",
        prints="inf -inf -0.000000 -2147483648\n  2.2|0.0001  |0x1p+0\n",
    ),
}
